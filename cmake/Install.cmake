include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Switchyard)
install(TARGETS switchyard EXPORT switchyard-targets FILE_SET HEADERS)
install(EXPORT switchyard-targets NAMESPACE switchyard:: DESTINATION ${config_dir})
export(EXPORT switchyard-targets NAMESPACE switchyard:: FILE ${PROJECT_BINARY_DIR}/switchyard-targets.cmake)
configure_package_config_file(cmake/SwitchyardConfig.cmake.in ${PROJECT_BINARY_DIR}/SwitchyardConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SwitchyardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/FindoneDNN.cmake ${PROJECT_BINARY_DIR}/SwitchyardConfig.cmake ${PROJECT_BINARY_DIR}/SwitchyardConfigVersion.cmake
        DESTINATION ${config_dir})

configure_file(cmake/switchyard.pc.in ${PROJECT_BINARY_DIR}/switchyard.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/switchyard.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(SWITCHYARD_BUILD_CLI)
  install(TARGETS switchyard_cli)
endif()
