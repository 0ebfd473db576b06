# What every target of the project is compiled with. Interface library: cenote_options.
add_library(cenote_options INTERFACE)
target_include_directories(cenote_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_options(cenote_options INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align
  -Wimplicit-fallthrough -Wno-missing-field-initializers
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # g++ 12 sees overlaps in std::string's operator+ that are none (PR 105651)
  -ffp-contract=off  # a fused multiply-add would make a sum depend on the compiler
)
if(CENOTE_SANITIZE)
  target_compile_options(cenote_options INTERFACE
    -fsanitize=${CENOTE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(cenote_options INTERFACE -fsanitize=${CENOTE_SANITIZE})
endif()
find_package(Threads REQUIRED)
target_link_libraries(cenote_options INTERFACE Threads::Threads)
