// SPDX-License-Identifier: Apache-2.0
//
// ptx.cuh: what a kernel does that may start before the one ahead of it has ended.
#pragma once

namespace switchyard::cuda {

/// Lets the kernel behind this one start, and waits until the one ahead has ended and what it wrote
/// is there. For kernels launched with LaunchShape::programmatic, and for the first of them.
__device__ __forceinline__ void follow_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace switchyard::cuda
