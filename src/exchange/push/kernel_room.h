// SPDX-License-Identifier: Apache-2.0
//
// kernel_room.h: how much of the GPU a kernel of an exchange may fill.
//
// Kernels wait for their counterparts on other ranks, so those that can run at the same time must
// not keep one another from starting. Where ranks share a GPU, every kernel of every rank gets an
// equal share, at least kMinCtas; more handles at once than have that room are not limited there.
// Elsewhere one stream, the main one, may fill the GPU: the stream of the last
// dispatch into slot 0 that began while no handle was alive. Kernels in other streams, side
// streams, share half of it. So a kernel of any stream finds room beside those of the others, and
// the first CTAs of a dispatch or combine wait for nobody.
//
// A kernel needs kMinCtas, so that half has room for a number of kernels at once: 44 on 132 SMs,
// 38 over hosts. There are as many lanes; where there are more handles, several share a lane, and a
// call in a side stream waits for the one before in its lane. All ranks make their calls in the
// same order, so the earlier call has its counterparts, which wait for still earlier ones at most.
//
// Over hosts the kernel that waits for what ranks of this host return, before it is passed back,
// has this room, too. NCCL's kernels wait for other hosts and know nothing of it: a CTA of theirs
// takes up to 640 threads and most registers of an SM, and starts once an SM has them. Only a
// kernel with fewer CTAs than SMs surely leaves some empty. All kernels of side streams together
// leave `num_message_sms`: one of them waits for ranks of this host, whose main kernels may wait
// for messages of this rank. A main kernel leaves none: messages of its call are ahead of it and
// have ended, or are behind it. Kernels that run beside messages of their own call leave as many
// where there are several blocks, so that blocks are not late.
//
// What is main follows from the calls alone, so ranks that run the same program agree.
#pragma once

#include <cstddef>

#include "switchyard/exchange_types.h"
#include "switchyard/stream.h"

namespace switchyard {

/// What one kernel may take.
struct KernelRoom {
  int num_ctas = 1;           ///< of 512 threads
  bool is_whole_gpu = false;  ///< CTAs may be of any size
  bool is_programmatic = false;
};

/// Who uses a GPU.
struct GpuUse {
  int num_sms = 1;
  int num_ranks = 1;  ///< that share it
  int max_in_flight = 1;
  int num_message_sms = 0;  ///< that messages between hosts need
};

/// Pure.
class KernelRooms {
 public:
  KernelRooms() = default;
  KernelRooms(const GpuUse& use, const ExchangeOptions& options);

  /// A dispatch into `slot` begins; no other handle is alive. Whether its stream becomes the main
  /// one.
  bool begin(std::size_t slot, Stream stream);
  KernelRoom of(Stream stream) const { return is_side(stream) ? side_ : full_; }
  /// The same with SMs left empty for messages to other hosts (RankLinks).
  KernelRoom beside_messages(Stream stream) const;

  bool has_sides() const { return has_sides_; }
  bool is_side(Stream stream) const { return has_sides_ && stream != main_; }
  /// 0: every handle has one of its own.
  std::size_t num_shared_lanes() const { return num_shared_lanes_; }

 private:
  KernelRoom full_;
  KernelRoom side_;
  bool is_alone_ = true;  ///< of this rank's exchange on its GPU
  bool has_sides_ = false;
  std::size_t num_shared_lanes_ = 0;
  int beside_messages_ = 1;
  Stream main_ = Stream::host();
};

}  // namespace switchyard
