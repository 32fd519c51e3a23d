# The Debian package: `make deb`, or `cpack -G DEB` in a build with shared libraries and the prefix /usr.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME switchyard)
set(CPACK_PACKAGE_VENDOR Switchyard)
set(CPACK_PACKAGE_CONTACT "Switchyard maintainers <maintainers@switchyard.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Expert-parallel dispatch and combine for Mixture-of-Experts layers")
set(CPACK_PACKAGE_DESCRIPTION
    "A library for C++20 and C11, with headers, CMake package and pkg-config file, and the command switchyard.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # which packages have the libraries that ours are linked with
# What programs that link ours depend on, and ldconfig when the package comes or goes.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(FILES NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
include(CPack)
