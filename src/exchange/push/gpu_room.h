// SPDX-License-Identifier: Apache-2.0
//
// gpu_room.h: how much of the GPU a kernel of an exchange may fill.
//
// Kernels wait for their counterparts on other ranks, so those that can run at the same time must
// not keep one another from starting. Where ranks share a GPU, every kernel of every rank gets an
// equal share. Elsewhere one stream, the main one, may fill the GPU: the stream of the last
// dispatch into slot 0 that began while no handle was alive. Kernels in other streams, of which
// there are at most max_in_flight, share half of it. So a kernel of any stream finds room beside
// those of the others, and the first CTAs of a dispatch or combine wait for nobody.
//
// Kernels of slot 0 are ordered before the dispatch that makes a stream the main one, because the
// caller orders the calls of a slot. Those of other slots in the main stream before are, too: the
// new one waits for them, unless it is captured; then the caller orders the graph.
//
// Over hosts the kernel that waits for what ranks of this host return, before it is passed back,
// has this room, too. NCCL's kernels wait for other hosts and know nothing of it: a CTA of theirs
// takes up to 640 threads and most registers of an SM, and starts once an SM has them. Only a
// kernel with fewer CTAs than SMs surely leaves some empty. All kernels of side streams together
// leave kMaxMessageCtas SMs (with up to 39 in flight on 132 SMs): one of them waits for ranks of
// this host, whose main kernels may wait for messages of this rank.
// A main kernel leaves none: messages of its call are ahead of it and have ended, or are behind it.
// Kernels that run beside messages of their own call leave as many where there are several blocks,
// so that blocks are not late.
//
// What is main follows from the calls alone, so ranks that run the same program agree.
#pragma once

#include <cstddef>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/stream.h"

#include "cuda/base/memory.h"

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
  GpuRoom(int num_sms, int ranks_on_gpu, int max_in_flight, bool has_hosts,
          const ExchangeOptions& options);

  /// A dispatch into `slot` begins; no other handle is alive.
  void begin(std::size_t slot, Stream stream);
  /// The kernels of a call in `slot` have been launched.
  void end(std::size_t slot, Stream stream);
  KernelRoom of(Stream stream) const { return has_sides_ && stream != main_ ? side_ : full_; }
  /// The same with SMs left empty for messages to other hosts (RankLinks).
  KernelRoom beside_messages(Stream stream) const;

 private:
  KernelRoom full_;
  KernelRoom side_;
  bool is_alone_ = true;  ///< of this rank's exchange on its GPU
  bool has_sides_ = false;
  int beside_messages_ = 1;
  Stream main_ = Stream::host();
  std::vector<cuda::OwnedEvent> ends_;  ///< of the last call of each slot but 0 in the main stream
};

}  // namespace switchyard
