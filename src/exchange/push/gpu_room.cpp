// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/gpu_room.h"

#include "cuda/base/check.h"

namespace switchyard {

GpuRoom::GpuRoom(const GpuUse& use, const ExchangeOptions& options) : rooms_(use, options) {
  if (rooms_.has_sides()) ends_.resize(static_cast<std::size_t>(use.max_in_flight) - 1);
  lanes_.resize(rooms_.num_shared_lanes());
}

void GpuRoom::begin(std::size_t slot, Stream stream) {
  if (!rooms_.begin(slot, stream) || cuda::is_capturing(stream.get(), "dispatch")) return;
  for (const cuda::OwnedEvent& end : ends_) end.make_wait(stream.get());
}

void GpuRoom::enter(std::size_t slot, Stream stream) {
  if (lanes_.empty() || !rooms_.is_side(stream)) return;
  if (!cuda::is_capturing(stream.get(), "exchange")) lane_of(slot).make_wait(stream.get());
}

void GpuRoom::leave(std::size_t slot, Stream stream) {
  const bool is_side = rooms_.is_side(stream);
  if (is_side ? lanes_.empty() : slot == 0 || !rooms_.has_sides()) return;
  if (cuda::is_capturing(stream.get(), "exchange")) return;
  (is_side ? lane_of(slot) : ends_[slot - 1]).record(stream.get());
}

}  // namespace switchyard
