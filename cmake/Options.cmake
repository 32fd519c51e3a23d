# Every option, with its help text, in one place.
option(SWITCHYARD_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(SWITCHYARD_BUILD_CLI "Build the switchyard command" ON)
option(SWITCHYARD_BUILD_BENCH "Build the developer benchmarks" OFF)
option(SWITCHYARD_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(SWITCHYARD_BUILD_FUZZ "Build the fuzz targets (clang only)" OFF)
option(SWITCHYARD_WARNINGS_AS_ERRORS "Fail on a compiler warning" OFF)
option(SWITCHYARD_WITH_CUDA "Build the CUDA module and its tests; needs nvcc" OFF)
option(SWITCHYARD_CUDA_STATIC "Link the CUDA module into the library instead of loading it" OFF)
option(BUILD_SHARED_LIBS "Build a shared library" OFF)

# AUTO uses the dependency if it is found, ON fails if it is absent, OFF does without it.
foreach(part ONEDNN NCCL)
  set(SWITCHYARD_WITH_${part} AUTO CACHE STRING "Use ${part}: AUTO, ON or OFF")
  set_property(CACHE SWITCHYARD_WITH_${part} PROPERTY STRINGS AUTO ON OFF)
endforeach()

set(SWITCHYARD_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_program(SWITCHYARD_CCACHE ccache)
if(SWITCHYARD_CCACHE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SWITCHYARD_CCACHE})
endif()
