# The Debian package, by `./dev package` (cpack): one package with the program, the libraries and what links to them. What
# it depends on is what its files are linked to (dpkg-shlibdeps); what they open at run time is only recommended.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cenote)
set(CPACK_PACKAGE_CONTACT "The Cenote project <cenote@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "${PROJECT_DESCRIPTION}
Leases GPUs of many machines, uses them from afar, and reduces between them over InfiniBand, RoCE,
shared memory or TCP: the cenote command, libcenote and libcenote-pool with their headers, and
drop-in CUDA libraries for programs that know nothing of it.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ibverbs-providers, libibverbs1")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libucx0")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# No shlibs file: it would offer the drop-in libcuda.so.1 to everybody.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS OFF)
include(CPack)
