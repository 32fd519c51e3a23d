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
