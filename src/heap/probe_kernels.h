// SPDX-License-Identifier: Apache-2.0
//
// probe_kernels.h: a store and a load by the GPU itself, through a mapping.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace switchyard {

inline constexpr int kPatternWords = 16;

/// What one rank leaves for another; a kernel argument, so the words come from the host.
struct Pattern {
  std::uint64_t words[kPatternWords];
};

/// Enqueues. Errors: kSystem.
void launch_store_pattern(const Pattern& pattern, std::uint64_t* to, cudaStream_t stream);
void launch_load_pattern(const std::uint64_t* from, std::uint64_t* to, cudaStream_t stream);

}  // namespace switchyard
