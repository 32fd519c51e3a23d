// SPDX-License-Identifier: Apache-2.0
//
// wire_kernels.h: kernels that only carry bytes between GPUs, in the three ways that kernels have.
// They show what the links can do.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

#include "cuda/base/meter_kernels.h"

namespace switchyard::cuda {

/// Every rank has `bytes` bytes at `source` in its window, which each peer gets at `landing` +
/// (source rank) * `bytes` in its own. All three are multiples of kWireGranule.
struct WireArgs {
  std::size_t source = 0;
  std::size_t landing = 0;
  std::size_t bytes = 0;
  int num_times = 1;  ///< one after another, in one kernel
  MeterPeers peers;
};
inline constexpr std::size_t kWireGranule = std::size_t{16} << 10;

/// A grid of at most one CTA per SM has CTAs that fill an SM; more CTAs share it by two.
struct WireGrid {
  int num_ctas = 1;
  bool is_shared_sm = false;
};

/// 16-byte loads of own memory, 16-byte stores to peers.
void launch_wire_stores(const WireArgs& args, const WireGrid& grid, cudaStream_t stream);
/// 16-byte loads of the peers' memory, 16-byte stores to own.
void launch_wire_loads(const WireArgs& args, const WireGrid& grid, cudaStream_t stream);
/// Bulk copies from own memory to shared memory and on to peers. sm_90 on; does nothing before.
void launch_wire_bulk_copies(const WireArgs& args, const WireGrid& grid, cudaStream_t stream);

}  // namespace switchyard::cuda
