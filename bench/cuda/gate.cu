// SPDX-License-Identifier: Apache-2.0

#include "gate.h"

namespace switchyard {
namespace {

__global__ void gate_kernel(const volatile std::uint32_t* flag) {
  while (*flag == 0) {
  }
}

}  // namespace

void launch_gate(const std::uint32_t* flag, cudaStream_t stream) {
  gate_kernel<<<1, 1, 0, stream>>>(flag);
}

}  // namespace switchyard
