// SPDX-License-Identifier: Apache-2.0
//
// gpu_room.h: the room of kernels (kernel_room.h), and the events that keep to it.
//
// Kernels of slot 0 are ordered before the dispatch that makes a stream the main one, because the
// caller orders the calls of a slot. Those of other slots in the main stream before are, too: the
// new one waits for them. Calls in side streams wait for the one before in their lane. Captured
// calls do neither: the caller orders the graph, which must not have more branches than lanes.
#pragma once

#include <cstddef>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/stream.h"

#include "cuda/base/memory.h"
#include "exchange/push/kernel_room.h"

namespace switchyard {

class GpuRoom {
 public:
  GpuRoom() = default;
  GpuRoom(const GpuUse& use, const ExchangeOptions& options);

  /// A dispatch into `slot` begins; no other handle is alive.
  void begin(std::size_t slot, Stream stream);
  /// Kernels of a call in `slot` come next.
  void enter(std::size_t slot, Stream stream);
  /// They have been launched.
  void leave(std::size_t slot, Stream stream);
  KernelRoom of(Stream stream) const { return rooms_.of(stream); }
  KernelRoom beside_messages(Stream stream) const { return rooms_.beside_messages(stream); }

 private:
  const cuda::OwnedEvent& lane_of(std::size_t slot) const { return lanes_[slot % lanes_.size()]; }

  KernelRooms rooms_;
  std::vector<cuda::OwnedEvent> ends_;   ///< of the last call of each slot but 0 in the main stream
  std::vector<cuda::OwnedEvent> lanes_;  ///< ends of the last calls; empty: none is shared
};

}  // namespace switchyard
