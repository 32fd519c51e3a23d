# Every find_package, with the minimum version and what needs it. Debian 12 has them all
# (scripts/install-deps); nothing is downloaded.
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)              # messages, everywhere in src/
find_package(spdlog 1.10 REQUIRED)        # core/log.cpp
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy>=1.0.3)  # quant, cpu: run-time SIMD dispatch
find_package(nlohmann_json 3.11 REQUIRED) # io: config.json, safetensors headers; cli: reports

set(SWITCHYARD_HAS_ONEDNN OFF)
if(NOT SWITCHYARD_WITH_ONEDNN STREQUAL "OFF")
  find_package(oneDNN 2.6 MODULE QUIET)   # moe: the fast CPU expert GEMM
  if(oneDNN_FOUND)
    set(SWITCHYARD_HAS_ONEDNN ON)
  elseif(SWITCHYARD_WITH_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "SWITCHYARD_WITH_ONEDNN is ON, but oneDNN was not found")
  endif()
endif()

set(SWITCHYARD_HAS_HWLOC OFF)
if(NOT SWITCHYARD_WITH_HWLOC STREQUAL "OFF")
  pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc>=2.0)  # core: NUMA nodes
  if(HWLOC_FOUND)
    set(SWITCHYARD_HAS_HWLOC ON)
  elseif(SWITCHYARD_WITH_HWLOC STREQUAL "ON")
    message(FATAL_ERROR "SWITCHYARD_WITH_HWLOC is ON, but pkg-config does not find hwloc 2.0 or newer")
  endif()
endif()

# The MPI module, and the program that `bench --baseline mpi` starts. Sanitizers would report errors of MPI itself.
set(SWITCHYARD_HAS_MPI OFF)
if(NOT SWITCHYARD_WITH_MPI STREQUAL "OFF" AND NOT SWITCHYARD_SANITIZE)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI 3.0 COMPONENTS CXX QUIET)
  if(MPI_CXX_FOUND)
    set(SWITCHYARD_HAS_MPI ON)
  elseif(SWITCHYARD_WITH_MPI STREQUAL "ON")
    message(FATAL_ERROR "SWITCHYARD_WITH_MPI is ON, but MPI was not found")
  endif()
endif()

if(SWITCHYARD_BUILD_CLI)
  find_package(CLI11 2.1 REQUIRED)
endif()
if(SWITCHYARD_BUILD_TESTS)
  find_package(GTest 1.12 REQUIRED)
endif()
if(SWITCHYARD_BUILD_BENCH)
  find_package(benchmark 1.7 REQUIRED)
endif()
