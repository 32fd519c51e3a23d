// SPDX-License-Identifier: Apache-2.0
//
// gpu.h: which GPUs a test has, which of them a rank gets, and how a test skips without one. A
// process that forks ranks must not use CUDA itself, so it asks a child.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cuda_runtime_api.h>

#include <gtest/gtest.h>

#include "switchyard/device.h"
#include "switchyard/stream.h"

#include "cuda/base/memory.h"

#define REQUIRE_GPU() \
  if (::switchyard::test::num_gpus() == 0) GTEST_SKIP() << "no CUDA device on this machine"
#define REQUIRE_GPU_IN_CHILD()                      \
  if (::switchyard::test::num_gpus_in_child() == 0) \
  GTEST_SKIP() << "no CUDA device on this "         \
                  "machine"

namespace switchyard::test {

inline int num_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

inline int num_gpus_in_child() {
  const pid_t child = fork();
  if (child == 0) _exit(std::min(num_gpus(), 100));
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/// Where tests of one GPU work.
inline constexpr Device kGpu = Device::cuda(0);
inline const Stream kGpuStream = Stream::default_of(kGpu);

/// The GPU of a rank; with fewer GPUs than ranks some share one.
inline Device gpu_of(int rank) { return Device::cuda(rank % std::max(1, num_gpus())); }

/// A stream of its own on a GPU.
inline cuda::OwnedStream make_stream(Device device) {
  const cuda::DeviceGuard guard(device.index);
  return cuda::OwnedStream();
}

}  // namespace switchyard::test
