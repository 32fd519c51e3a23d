// SPDX-License-Identifier: Apache-2.0
//
// ptx.cuh: every inline PTX instruction of the library, once. A function does what its instruction
// does and no more; what the instructions are for stands where they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

namespace switchyard::cuda {

// ---- programmatic dependent launch: nothing before sm_90

/// Returns once the kernels ahead have ended and what they wrote is visible.
__device__ __forceinline__ void wait_for_prerequisites() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the kernel behind this one start, once every CTA of this one has said so or ended.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// The first act of a row kernel: for those launched with LaunchShape::programmatic, and for the
/// first of a chain.
///
/// Row kernels let dependents start before they wait themselves, so that the launches of a whole
/// chain overlap; they wait for no peer, so what they hold of an SM becomes free on its own.
/// Kernels of the exchange do it the other way round (begin_kernel in exchange/call.cuh). They wait
/// for peers and may fill the GPU: the next kernel may start only when the one ahead has ended, so
/// that at most one kernel of a stream holds room on the SMs without being able to do anything.
/// Memory is safe in either order: every kernel waits before its first access, so the end of one
/// implies the end of all before it.
__device__ __forceinline__ void follow_kernel() {
  launch_dependents();
  wait_for_prerequisites();
}

// ---- loads and stores that peers see: relaxed, of system scope, never served by L1. Words of a
// ---- vector arrive one by one.

__device__ __forceinline__ void store_relaxed_sys(void* to, const std::uint32_t (&w)[4]) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]),
               "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}
__device__ __forceinline__ void store_relaxed_sys(void* to, const std::uint32_t (&w)[2]) {
  asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1])
               : "memory");
}
__device__ __forceinline__ void store_relaxed_sys_u64(void* to, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed_sys_u32(void* to, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed_sys_u8(void* to, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u8 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void load_relaxed_sys(const void* from, std::uint32_t (&w)[4]) {
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void load_relaxed_sys(const void* from, std::uint32_t (&w)[2]) {
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(w[0]), "=r"(w[1])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ std::uint64_t load_relaxed_sys_u64(const void* from) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
/// What its thread, or one that it meets at a barrier, loads next is at least as new.
__device__ __forceinline__ std::uint64_t load_acquire_sys_u64(const void* from) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ std::uint32_t load_relaxed_sys_u32(const void* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ std::uint32_t load_relaxed_sys_u8(const void* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// ---- other memory

__device__ __forceinline__ std::uint32_t shared_address(const void* of) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(of));
}

/// For memory that no running kernel writes. Nothing waits for it.
__device__ __forceinline__ void prefetch_l1(const void* from) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}

/// 16 bytes from global to shared memory, past L1, complete after wait_async_groups.
__device__ __forceinline__ void copy_async_16(std::byte* to, const std::byte* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
/// Makes a group of this thread's copies since the last one.
__device__ __forceinline__ void commit_async_group() { asm volatile("cp.async.commit_group;"); }
/// Returns when all of this thread's groups but the last kNumPending are complete.
template <int kNumPending>
__device__ __forceinline__ void wait_async_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNumPending) : "memory");
}

// ---- bulk copies between global and shared memory (nothing before sm_90), 16-byte aligned, of a
// ---- multiple of 16 bytes; only one thread asks for them

/// Makes a barrier in shared memory that one arrival completes, and whatever that arrival expects.
__device__ __forceinline__ void init_barrier(std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
#endif
}
/// Bulk copies see barriers that this thread has made.
__device__ __forceinline__ void fence_barrier_init() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Arrives at `barrier`, which completes its phase when `bytes` more have been copied.
__device__ __forceinline__ void arrive_expecting(std::uint64_t* barrier, std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
#endif
}
/// Whether the phase of this parity is complete; waits for a moment.
__device__ __forceinline__ bool try_wait_barrier(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t is_complete = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
      " selp.u32 %0, 1, 0, p; }"
      : "=r"(is_complete)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
#endif
  return is_complete != 0;
}
__device__ __forceinline__ void bulk_copy_to_shared(std::byte* to, const std::byte* from,
                                                    std::uint32_t bytes, std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#endif
}
__device__ __forceinline__ void bulk_copy_to_global(std::byte* to, const std::byte* from,
                                                    std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
#endif
}
/// Makes a group of this thread's copies to global memory since the last one.
__device__ __forceinline__ void commit_bulk_group() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// Returns when all groups but the last kNumPending have read their shared memory.
template <int kNumPending>
__device__ __forceinline__ void wait_bulk_groups_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kNumPending) : "memory");
#endif
}
/// Returns when all groups but the last kNumPending are complete.
template <int kNumPending>
__device__ __forceinline__ void wait_bulk_groups() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kNumPending) : "memory");
#endif
}
/// Bulk copies that this thread asks for next see global memory as it does.
__device__ __forceinline__ void fence_bulk_global() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// ---- registers and clock

/// Stops the compiler from recomputing `value` at each use.
template <typename T>
__device__ __forceinline__ void keep_in_register(T& value) {
  static_assert(sizeof(T) == 8);
  asm volatile("" : "+l"(value));
}
__device__ __forceinline__ void keep_in_register(std::uint32_t& value) {
  asm volatile("" : "+r"(value));
}

/// One clock for all SMs of a GPU.
__device__ __forceinline__ std::uint64_t globaltimer_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// ---- arithmetic and conversions; of a pair, `low` is in the low half

/// 1 / x to within an ulp; subnormal numbers are 0.
__device__ __forceinline__ float reciprocal_estimate(float x) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
  return estimate;
}

/// The larger one; NaN if either is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

__device__ __forceinline__ std::uint32_t mul_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// NaN keeps its bits.
__device__ __forceinline__ float cvt_f32_f16(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

/// Rounded to nearest even; NaN becomes 7FFF.
__device__ __forceinline__ std::uint32_t cvt_bf16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(low), "f"(high));
  return pair;
}
__device__ __forceinline__ std::uint32_t cvt_f16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(low), "f"(high));
  return pair;
}

/// The larger of each of two; a number wins over NaN.
__device__ __forceinline__ std::uint32_t max_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
__device__ __forceinline__ std::uint32_t max_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t larger;
  asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

/// Bytes of `a` and `b`, saturated, `b` the lowest, below the low half of `above`.
__device__ __forceinline__ std::uint32_t pack_sat_s8(int a, int b, std::uint32_t above) {
  std::uint32_t bytes;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(above));
  return bytes;
}

#if __CUDA_ARCH__ >= 890
/// Rounded to nearest even, saturated; NaN becomes 7F.
__device__ __forceinline__ std::uint16_t cvt_e4m3x2(float low, float high) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(pair) : "f"(low), "f"(high));
  return pair;
}
__device__ __forceinline__ std::uint32_t cvt_f16x2_e4m3x2(std::uint16_t codes) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
  return pair;
}
#endif

}  // namespace switchyard::cuda
