// SPDX-License-Identifier: Apache-2.0
//
// run_in_child.h: queries a GPU for a test that must not use CUDA itself because it forks ranks.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <string>

#include "cuda/base/check.h"
#include "heap/heap_support.h"
#include "heap/nccl_heap.h"
#include "support/processes.h"

namespace switchyard::test {

/// Returns what `ask` returns in a child process.
inline std::string run_in_child(const std::function<std::string()>& ask) {
  RankProcesses child(1, [&](const Group&) { throw Error(Errc::kNotAvailable, ask()); });
  return child.wait()[0].error->what();
}

/// Returns why this machine cannot use a heap; empty: it can.
inline std::string why_not(const std::string& heap) {
  return run_in_child([&]() -> std::string {
    if (heap == "nccl") return nccl_obstacle();
    const HeapKind kind = heap == "vmm" ? HeapKind::kVmm : HeapKind::kIpc;
    return heap_obstacles(0)[static_cast<std::size_t>(kind)];
  });
}

inline std::size_t free_bytes() {
  std::size_t available = 0;
  std::size_t total = 0;
  cuda::check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return available;
}

/// Free bytes of all GPUs together.
inline std::int64_t free_bytes_of_all_gpus() {
  return std::stoll(run_in_child([] {
    int num_gpus = 0;
    cuda::check_cuda(cudaGetDeviceCount(&num_gpus), "cudaGetDeviceCount");
    std::size_t sum = 0;
    for (int device = 0; device < num_gpus; ++device) {
      cuda::check_cuda(cudaSetDevice(device), "cudaSetDevice");
      sum += free_bytes();
    }
    return std::to_string(sum);
  }));
}

}  // namespace switchyard::test
