// SPDX-License-Identifier: Apache-2.0

#include "heap/heap_support.h"

#include <cuda_runtime_api.h>

#include "core/fail.h"
#include "cuda/base/check.h"
#include "heap/driver_api.h"

namespace switchyard {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda::check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

std::string vmm_obstacle(int device) {
  try {
    return driver_api().has_posix_handles(device)
               ? ""
               : "the driver gives no descriptors for memory of this GPU";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::array<std::string, kNumHeapKinds> heap_obstacles(int device) {
  std::array<std::string, kNumHeapKinds> obstacles;
  const auto of = [&](HeapKind kind) -> std::string& {
    return obstacles[static_cast<std::size_t>(kind)];
  };
  of(HeapKind::kVmm) = vmm_obstacle(device);
  if (attribute(cudaDevAttrUnifiedAddressing, device) == 0) {
    of(HeapKind::kSameProcess) = of(HeapKind::kIpc) = "the GPU has no unified addressing";
  } else if (attribute(cudaDevAttrIpcEventSupport, device) == 0) {
    of(HeapKind::kIpc) = "the driver has no CUDA IPC for this GPU";
  }
  return obstacles;
}

std::string gpu_uuid(int device) {
  cudaDeviceProp properties{};
  cuda::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    const bool is_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += fmt::format("{}{:02x}", is_group ? "-" : "",
                        static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}

ReachRow reach_of(int device, const std::vector<std::string>& gpus) {
  int num_visible = 0;
  cuda::check_cuda(cudaGetDeviceCount(&num_visible), "cudaGetDeviceCount");
  std::vector<std::string> visible;
  for (int other = 0; other < num_visible; ++other) visible.push_back(gpu_uuid(other));
  ReachRow row;
  for (const std::string& gpu : gpus) {
    char mark = '?';
    for (int other = 0; other < num_visible; ++other) {
      if (visible[static_cast<std::size_t>(other)] != gpu) continue;
      int can = other == device ? 1 : 0;
      if (can == 0) cuda::check_cuda(cudaDeviceCanAccessPeer(&can, device, other), "peer access");
      mark = can != 0 ? '1' : '0';
    }
    row += mark;
  }
  return row;
}

}  // namespace switchyard
