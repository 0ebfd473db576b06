# cmake -DOUT=embedded.cpp -DFOLDER=... -P embed.cmake: makes the source of embedded.h.
set(code "#include \"cuda/kernels/embedded.h\"\nnamespace cenote::cuda::kernels {\n")
foreach(name mlp reduce basic)
  file(READ ${FOLDER}/${name}.ptx text)
  string(APPEND code "std::string_view ${name}_ptx() { return R\"__PTX__(${text})__PTX__\"; }\n")
endforeach()
string(APPEND code "}  // namespace cenote::cuda::kernels\n")
file(WRITE ${OUT} "${code}")
