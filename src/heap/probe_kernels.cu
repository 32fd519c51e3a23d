// SPDX-License-Identifier: Apache-2.0

#include "cuda/base/check.h"
#include "heap/probe_kernels.h"

namespace switchyard {
namespace {

__global__ void store_pattern_kernel(Pattern pattern, std::uint64_t* to) {
  to[threadIdx.x] = pattern.words[threadIdx.x];
}

__global__ void load_pattern_kernel(const std::uint64_t* from, std::uint64_t* to) {
  to[threadIdx.x] = static_cast<const volatile std::uint64_t*>(from)[threadIdx.x];
}

}  // namespace

void launch_store_pattern(const Pattern& pattern, std::uint64_t* to, cudaStream_t stream) {
  store_pattern_kernel<<<1, kPatternWords, 0, stream>>>(pattern, to);
  cuda::check_launch("store_pattern_kernel");
}

void launch_load_pattern(const std::uint64_t* from, std::uint64_t* to, cudaStream_t stream) {
  load_pattern_kernel<<<1, kPatternWords, 0, stream>>>(from, to);
  cuda::check_launch("load_pattern_kernel");
}

}  // namespace switchyard
