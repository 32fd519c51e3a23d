// SPDX-License-Identifier: Apache-2.0
//
// ptx.cuh: the instructions of the lab, each once.
#pragma once

#include <cstdint>

using u8 = unsigned char;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

__device__ inline u64 gtime() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
__device__ inline u32 ld_rlx(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline u32 ld_acq(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline u64 ld_rlx(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline u64 ld_acq(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline void st_rlx(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ inline void st_rlx(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ inline void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ inline uint4 ld_nc(const char* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
// Row data that another GPU wrote or writes: after an acquire, a weak load.
__device__ inline uint4 ld16(const char* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ inline void st16(char* p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ inline void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void pdl_go() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline u32 sptr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ inline void mbar_init(u64* m, u32 n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sptr(m)), "r"(n) : "memory");
}
__device__ inline void mbar_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void mbar_expect(u64* m, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sptr(m)), "r"(bytes)
               : "memory");
}
__device__ inline void mbar_arrive(u64* m) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sptr(m)) : "memory");
}
__device__ inline bool mbar_try(u64* m, u32 parity) {
  u32 ok;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; "
      "}"
      : "=r"(ok)
      : "r"(sptr(m)), "r"(parity)
      : "memory");
  return ok;
}
// An address in shared memory that the compiler computes once.
using Shared = u32;
__device__ inline Shared shared_of(const void* p) {
  Shared v;
  asm volatile("mov.u32 %0, %1;" : "=r"(v) : "r"(sptr(p)));
  return v;
}
__device__ inline uint4 lds16(Shared p) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(p)
               : "memory");
  return v;
}
__device__ inline bool mbar_try(Shared m, u32 parity) {
  u32 ok;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; "
      "}"
      : "=r"(ok)
      : "r"(m), "r"(parity)
      : "memory");
  return ok;
}
__device__ inline void mbar_arrive(Shared m) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(m) : "memory");
}
// Never suspends, unlike mbar_try.
__device__ inline bool mbar_test(u64* m, u32 parity) {
  u32 ok;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
      "p; }"
      : "=r"(ok)
      : "r"(sptr(m)), "r"(parity)
      : "memory");
  return ok;
}
__device__ inline void bulk_load(void* dst, const char* src, u32 bytes, u64* m) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(sptr(dst)),
      "l"(src), "r"(bytes), "r"(sptr(m))
      : "memory");
}
__device__ inline void bulk_store(char* dst, const void* src, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst),
               "r"(sptr(src)), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N>
__device__ inline void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
__device__ inline void proxy_fence_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ inline void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline u32 bf2(float a, float b) {
  u32 v;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(v) : "f"(a), "f"(b));
  return v;
}
__device__ inline void add_one(u32* p) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
__device__ inline u32 add_one_acq_rel(u32* p) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(p) : "memory");
  return old;
}
__device__ inline float rcp(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ inline u32 e4m3x2(float a, float b) {
  unsigned short v;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(v) : "f"(a), "f"(b));
  return v;
}
__device__ inline u32 max_abs2(u32 a, u32 b) {
  u32 m;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
  return m;
}
