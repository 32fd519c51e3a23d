// SPDX-License-Identifier: Apache-2.0
//
// probe_kernels.h: kernels that store and load through a mapping.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace switchyard {

inline constexpr int kPatternWords = 16;

/// What one rank leaves for another. It is a kernel argument, so its words come from the host.
struct Pattern {
  std::uint64_t words[kPatternWords];
};

/// Both enqueue one kernel. Errors: kSystem.
void launch_store_pattern(const Pattern& pattern, std::uint64_t* to, cudaStream_t stream);
void launch_load_pattern(const std::uint64_t* from, std::uint64_t* to, cudaStream_t stream);

}  // namespace switchyard
