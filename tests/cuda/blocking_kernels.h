// SPDX-License-Identifier: Apache-2.0
//
// blocking_kernels.h: neighbors that an exchange must tolerate: one that occupies SMs and keeps
// them, and one that lets the next kernel start long before it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

namespace switchyard::test {

/// Occupies all SMs of the current GPU except `num_spared` until `*release` (host memory) is not 0,
/// or for `max_ms`. `num_started`, in device memory and zeroed by the caller, counts the occupied
/// SMs.
void launch_blocker(int num_spared, const std::uint32_t* release, std::int64_t max_ms,
                    std::uint32_t* num_started, cudaStream_t stream);

struct LateCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;  ///< a multiple of 4
};

/// Waits for the preceding kernel, lets the next one start, sleeps, and only then copies.
void launch_late_copy(const LateCopy& first, const LateCopy& second, std::int64_t sleep_us,
                      bool programmatic, cudaStream_t stream);

}  // namespace switchyard::test
