// SPDX-License-Identifier: Apache-2.0
//
// gpu_room.h: how much of the GPU a kernel of an exchange may fill.
//
// Kernels wait for their counterparts on other ranks, so those that can run at the same time must
// not keep one another from starting. Where ranks share a GPU, every kernel of every rank gets an
// equal share. Elsewhere one stream, the main one, may fill the GPU: the stream of the last
// dispatch that began while no handle was alive. Kernels of other streams, of which there are at
// most max_in_flight, share half of it. So a kernel of any stream finds room beside those of the
// others, and the first CTAs of a dispatch or combine wait for nobody. Ranks must agree on which of
// a program's streams is which, as they do if they run the same program.
#pragma once

#include "switchyard/exchange_types.h"
#include "switchyard/stream.h"

namespace switchyard {

/// What one kernel may take.
struct KernelRoom {
  int num_ctas = 1;           ///< of 512 threads
  bool is_whole_gpu = false;  ///< CTAs may be of any size
  bool is_programmatic = false;
};

class GpuRoom {
 public:
  GpuRoom() = default;
  GpuRoom(int num_sms, int ranks_on_gpu, int max_in_flight, const ExchangeOptions& options);

  /// A dispatch into this stream begins; no other handle is alive.
  void set_main(Stream stream) { main_ = stream; }
  KernelRoom of(Stream stream) const { return has_sides_ && stream != main_ ? side_ : full_; }

 private:
  KernelRoom full_;
  KernelRoom side_;
  bool has_sides_ = false;
  Stream main_ = Stream::host();
};

}  // namespace switchyard
