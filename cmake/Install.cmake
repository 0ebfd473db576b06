# What `cmake --install` puts where, and how others find it: the CMake package Cenote (targets Cenote::cenote and
# Cenote::pool) and pkg-config's cenote and cenote-pool. Everything is found from where it stands, so the prefix may move.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_custom_target(installed DEPENDS cenote_shared cenote_pool_shared cenote_dropin_cuda cenote_dropin_cudart)
set_target_properties(cenote_shared PROPERTIES EXPORT_NAME cenote)
set_target_properties(cenote_pool_shared PROPERTIES EXPORT_NAME pool)
foreach(library cenote_shared cenote_pool_shared)
  target_include_directories(${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

install(TARGETS cenote_shared cenote_pool_shared EXPORT CenoteTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/cenote DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Where `cenote lease -- PROGRAM` finds them, from the program's own place: lib/, whatever the libraries' folder is.
install(TARGETS cenote_dropin_cuda cenote_dropin_cudart LIBRARY DESTINATION lib/cenote NAMELINK_SKIP)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Cenote)
install(EXPORT CenoteTargets NAMESPACE Cenote:: DESTINATION ${package})
configure_package_config_file(cmake/CenoteConfig.cmake.in ${CMAKE_BINARY_DIR}/CenoteConfig.cmake
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
# Programs that were built with one major version run with all later minor ones.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/CenoteConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/CenoteConfig.cmake ${CMAKE_BINARY_DIR}/CenoteConfigVersion.cmake DESTINATION ${package})

file(RELATIVE_PATH CENOTE_UP_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(module cenote cenote-pool)
  configure_file(cmake/${module}.pc.in ${CMAKE_BINARY_DIR}/${module}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${module}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.md")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN data EXCLUDE)
install(FILES examples/data/digits.csv DESTINATION ${CMAKE_INSTALL_DATADIR}/cenote)  # where `cenote demo` looks

if(TARGET cenote)
  add_dependencies(installed cenote)
  install(TARGETS cenote RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(NOT CMAKE_CROSSCOMPILING)
    set(completion ${CMAKE_BINARY_DIR}/completion/cenote)
    # Made by the build, not by the installation: two of these at once would write one file.
    add_custom_command(OUTPUT ${completion} DEPENDS cenote VERBATIM
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/completion
      COMMAND cenote completion bash > ${completion})
    add_custom_target(cenote_completion ALL DEPENDS ${completion})
    add_dependencies(installed cenote_completion)
    install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  endif()
endif()
