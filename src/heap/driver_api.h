// SPDX-License-Identifier: Apache-2.0
//
// driver_api.h: the few functions of the CUDA driver that have no counterpart in the runtime. They
// are looked up through the runtime, so nothing links libcuda and the module loads without a
// driver.
#pragma once

#include <cuda.h>

namespace switchyard {

struct DriverApi {
  decltype(&cuMemGetAllocationGranularity) mem_get_allocation_granularity = nullptr;
  decltype(&cuMemCreate) mem_create = nullptr;
  decltype(&cuMemRelease) mem_release = nullptr;
  decltype(&cuMemExportToShareableHandle) mem_export = nullptr;
  decltype(&cuMemImportFromShareableHandle) mem_import = nullptr;
  decltype(&cuMemAddressReserve) mem_address_reserve = nullptr;
  decltype(&cuMemAddressFree) mem_address_free = nullptr;
  decltype(&cuMemMap) mem_map = nullptr;
  decltype(&cuMemUnmap) mem_unmap = nullptr;
  decltype(&cuMemSetAccess) mem_set_access = nullptr;
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&cuGetErrorName) get_error_name = nullptr;

  /// Whether this GPU's memory can be passed to other processes as a file descriptor. Errors:
  /// kSystem.
  bool has_posix_handles(int device) const;
};

/// Errors: kNotAvailable if there is no driver, or if it lacks a function, which is named.
const DriverApi& driver_api();

/// Throws unless `result` is CUDA_SUCCESS. Errors: kOutOfMemory, else kSystem.
void check_driver(CUresult result, const char* what);

}  // namespace switchyard
