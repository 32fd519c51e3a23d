# switchyard_version_symbols(target): in a shared library the functions of the C interface have a version. Symbols that
# the list does not name, those of C++, stay as they are.
function(switchyard_version_symbols target)
  set_property(TARGET ${target} PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/symbols.map)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL SHARED_LIBRARY)
    target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/capi/symbols.map)
  endif()
endfunction()
