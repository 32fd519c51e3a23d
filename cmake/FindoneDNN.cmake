# Defines oneDNN::oneDNN from its headers and library. Its own config file, as shipped by Debian, requires
# OpenCL, which the CPU engine does not use.
find_path(oneDNN_INCLUDE_DIR NAMES dnnl.hpp)
find_library(oneDNN_LIBRARY NAMES dnnl)
if(oneDNN_INCLUDE_DIR)
  find_file(version_header NAMES oneapi/dnnl/dnnl_version.h PATHS ${oneDNN_INCLUDE_DIR} NO_DEFAULT_PATH NO_CACHE)
  file(STRINGS ${version_header} lines REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]+" "" oneDNN_VERSION "${lines}")
  string(REPLACE ";" "." oneDNN_VERSION "${oneDNN_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR VERSION_VAR oneDNN_VERSION)
if(oneDNN_FOUND AND NOT TARGET oneDNN::oneDNN)
  add_library(oneDNN::oneDNN UNKNOWN IMPORTED)
  set_target_properties(oneDNN::oneDNN PROPERTIES IMPORTED_LOCATION ${oneDNN_LIBRARY}
                                                  INTERFACE_INCLUDE_DIRECTORIES ${oneDNN_INCLUDE_DIR})
endif()
