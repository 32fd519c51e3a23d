// SPDX-License-Identifier: Apache-2.0

#include "heap/driver_api.h"

#include <cuda_runtime_api.h>

#include "core/fail.h"
#include "cuda/base/check.h"

namespace switchyard {
namespace {

constexpr unsigned kDriverVersion = 12000;  // the functions' ABI version

template <typename Function>
void find(Function& function, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t result =
      cudaGetDriverEntryPointByVersion(name, &address, kDriverVersion, cudaEnableDefault, &found);
#else
  const cudaError_t result = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#endif
  cuda::check_cuda(result, name);
  require(found == cudaDriverEntryPointSuccess && address != nullptr, Errc::kNotAvailable,
          "cuda: the driver has no {}, must be one of CUDA 12 or newer", name);
  function = reinterpret_cast<Function>(address);
}

DriverApi load() {
  DriverApi api;
  find(api.mem_get_allocation_granularity, "cuMemGetAllocationGranularity");
  find(api.mem_create, "cuMemCreate");
  find(api.mem_release, "cuMemRelease");
  find(api.mem_export, "cuMemExportToShareableHandle");
  find(api.mem_import, "cuMemImportFromShareableHandle");
  find(api.mem_address_reserve, "cuMemAddressReserve");
  find(api.mem_address_free, "cuMemAddressFree");
  find(api.mem_map, "cuMemMap");
  find(api.mem_unmap, "cuMemUnmap");
  find(api.mem_set_access, "cuMemSetAccess");
  find(api.device_get_attribute, "cuDeviceGetAttribute");
  find(api.get_error_name, "cuGetErrorName");
  return api;
}

}  // namespace

bool DriverApi::has_posix_handles(int device) const {
  for (const CUdevice_attribute which :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int value = 0;
    check_driver(device_get_attribute(&value, which, device), "cuDeviceGetAttribute");
    if (value == 0) return false;
  }
  return true;
}

const DriverApi& driver_api() {
  static const DriverApi api = load();
  return api;
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver_api().get_error_name(result, &name);
  fail(result == CUDA_ERROR_OUT_OF_MEMORY ? Errc::kOutOfMemory : Errc::kSystem,
       "{}: the CUDA driver says {}", what, name == nullptr ? "an unknown error" : name);
}

}  // namespace switchyard
