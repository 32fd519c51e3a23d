// SPDX-License-Identifier: Apache-2.0
//
// ptx.cuh: wrappers of PTX instructions.
#pragma once

namespace switchyard {

/// Lets the next kernel in the stream start early, then waits until the preceding one has completed
/// and its writes are visible. For kernels launched with LaunchShape::programmatic and for the one
/// before them.
__device__ __forceinline__ void follow_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace switchyard
