# What a wheel contains besides Python code. Library and command look for the modules of CUDA and MPI beside themselves.
set(package switchyard)
set(targets switchyard_native)
if(SWITCHYARD_BUILD_CLI)
  list(APPEND targets switchyard_cli)
endif()
if(TARGET switchyard_cuda)
  list(APPEND targets switchyard_cuda)
endif()
set_target_properties(${targets} PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
foreach(target IN LISTS targets)
  # DT_RPATH, which the vendored libraries' own needs follow too.
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
endforeach()
# libmpi is the machine's: it must be the one of mpirun, and of mpi4py where a program uses that.
if(TARGET switchyard_mpi)
  list(APPEND targets switchyard_mpi)
endif()
install(TARGETS ${targets} COMPONENT python LIBRARY DESTINATION ${package} RUNTIME DESTINATION ${package})
install(FILES ${package_folder}/_native.pyi DESTINATION ${package} COMPONENT python)

# Copies the shared libraries that are not on every machine into the package, under the names that the loader asks for.
install(CODE "set(package_files $<TARGET_FILE:switchyard_native>)" COMPONENT python)
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES MODULES ${package_files} RESOLVED_DEPENDENCIES_VAR needed
       PRE_INCLUDE_REGEXES "^lib(fmt|spdlog|hwy|dnnl)\\." PRE_EXCLUDE_REGEXES ".")
  foreach(library IN LISTS needed)
    get_filename_component(name ${library} NAME)
    get_filename_component(file ${library} REALPATH)
    file(INSTALL ${file} DESTINATION ${CMAKE_INSTALL_PREFIX}/switchyard/lib RENAME ${name})
  endforeach()
]] COMPONENT python)

add_custom_target(switchyard_python DEPENDS ${targets} switchyard_stub)
