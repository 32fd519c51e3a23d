# What `cmake --install` installs, and where: the library with its headers, the modules, a CMake package, a
# pkg-config file, and the command with its manual page and completion.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Switchyard)
install(TARGETS switchyard EXPORT switchyard-targets FILE_SET HEADERS)
if(TARGET switchyard_cuda)
  install(TARGETS switchyard_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET switchyard_mpi)
  install(TARGETS switchyard_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES ${SWITCHYARD_MPI_HEADER} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/switchyard)
install(EXPORT switchyard-targets NAMESPACE switchyard:: DESTINATION ${config_dir})
export(EXPORT switchyard-targets NAMESPACE switchyard:: FILE ${PROJECT_BINARY_DIR}/switchyard-targets.cmake)
configure_package_config_file(cmake/SwitchyardConfig.cmake.in ${PROJECT_BINARY_DIR}/SwitchyardConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SwitchyardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/FindoneDNN.cmake ${PROJECT_BINARY_DIR}/FindoneDNN.cmake COPYONLY)
install(FILES cmake/FindoneDNN.cmake ${PROJECT_BINARY_DIR}/SwitchyardConfig.cmake ${PROJECT_BINARY_DIR}/SwitchyardConfigVersion.cmake
        DESTINATION ${config_dir})

# The .pc file derives its prefix from its own location, unless the library directory is outside the prefix.
# For a static library it lists what to link in the public field, so that `pkg-config --libs` is enough; as libraries and not as
# packages, whose macros (SPDLOG_*, HWY_*) would change the user's own code.
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
set(pc_libs "")
if(NOT BUILD_SHARED_LIBS)
  set(pc_libs "-lspdlog -lfmt -lhwy -lstdc++ -lm") # a program in C is linked by a compiler that does not know C++
  if(SWITCHYARD_HAS_ONEDNN)
    string(APPEND pc_libs " -ldnnl")
  endif()
  if(SWITCHYARD_HAS_HWLOC)
    string(APPEND pc_libs " -lhwloc")
  endif()
  if(SWITCHYARD_CUDA_STATIC)
    string(APPEND pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
  endif()
endif()
configure_file(cmake/switchyard.pc.in ${PROJECT_BINARY_DIR}/switchyard.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/switchyard.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(SWITCHYARD_BUILD_CLI)
  install(TARGETS switchyard_cli)
  if(TARGET switchyard_mpi_alltoallv)
    install(TARGETS switchyard_mpi_alltoallv)
  endif()

  # Both files are made from what the command says of itself, so they never differ from it.
  find_package(Python3 3.9 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND)
    set(manual_folder ${PROJECT_BINARY_DIR}/manual)
    add_custom_command(
      OUTPUT ${manual_folder}/switchyard.1.gz ${manual_folder}/switchyard.bash ${manual_folder}/_switchyard
      COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/manual.py $<TARGET_FILE:switchyard_cli> ${manual_folder}
      DEPENDS switchyard_cli tools/manual.py
      COMMENT "Manual page and completions of the command")
    add_custom_target(switchyard_manual ALL DEPENDS ${manual_folder}/switchyard.1.gz)
    install(FILES ${manual_folder}/switchyard.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${manual_folder}/switchyard.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
            RENAME switchyard)
    set(zsh_folder site-functions)
    if(CMAKE_INSTALL_PREFIX STREQUAL "/usr") # where Debian's zsh looks for those of packages
      set(zsh_folder vendor-completions)
    endif()
    install(FILES ${manual_folder}/_switchyard DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh_folder})
  else()
    message(STATUS "switchyard: no manual page and no completion, which python3 would make")
  endif()
endif()
