# What `cmake --install` puts where: the library with its headers, a CMake package, a pkg-config file,
# and the command.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Switchyard)
install(TARGETS switchyard EXPORT switchyard-targets FILE_SET HEADERS)
install(EXPORT switchyard-targets NAMESPACE switchyard:: DESTINATION ${config_dir})
export(EXPORT switchyard-targets NAMESPACE switchyard:: FILE ${PROJECT_BINARY_DIR}/switchyard-targets.cmake)
configure_package_config_file(cmake/SwitchyardConfig.cmake.in ${PROJECT_BINARY_DIR}/SwitchyardConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SwitchyardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/FindoneDNN.cmake ${PROJECT_BINARY_DIR}/FindoneDNN.cmake COPYONLY)
install(FILES cmake/FindoneDNN.cmake ${PROJECT_BINARY_DIR}/SwitchyardConfig.cmake ${PROJECT_BINARY_DIR}/SwitchyardConfigVersion.cmake
        DESTINATION ${config_dir})

# The .pc file finds its prefix from where it lies, unless the library directory is outside the prefix.
# A static library names what it needs in the open fields, so that `pkg-config --libs` is enough.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" up_to_prefix ${up_to_prefix})
  set(pc_prefix "\${pcfiledir}/${up_to_prefix}")
endif()
foreach(part LIBDIR INCLUDEDIR)
  set(pc_${part} "\${prefix}/${CMAKE_INSTALL_${part}}")
  if(IS_ABSOLUTE ${CMAKE_INSTALL_${part}})
    set(pc_${part} ${CMAKE_INSTALL_${part}})
  endif()
endforeach()
set(pc_requires "")
set(pc_libs "")
if(NOT BUILD_SHARED_LIBS)
  set(pc_requires "fmt spdlog libhwy")
  if(SWITCHYARD_HAS_ONEDNN)
    set(pc_libs "-ldnnl")
  endif()
endif()
configure_file(cmake/switchyard.pc.in ${PROJECT_BINARY_DIR}/switchyard.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/switchyard.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(SWITCHYARD_BUILD_CLI)
  install(TARGETS switchyard_cli)
endif()
