// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/kernel_room.h"

#include <algorithm>

#include "plan/push_grid.h"

namespace switchyard {

KernelRooms::KernelRooms(const GpuUse& use, const ExchangeOptions& options)
    : is_alone_(use.num_ranks == 1),
      has_sides_(is_alone_ && use.max_in_flight > 1),
      beside_messages_(use.num_sms - use.num_message_sms) {
  const int all = kExchangeCtasPerSm * use.num_sms;
  const int limit = options.num_ctas > 0 ? options.num_ctas : all;
  const auto limited = [&](int ctas) { return std::max(kMinCtas, std::min(ctas, limit)); };
  full_.num_ctas = limited(is_alone_ ? all : all / (use.num_ranks * use.max_in_flight));
  full_.is_whole_gpu = is_alone_ && options.num_ctas == 0;
  full_.is_programmatic = is_alone_ && options.programmatic_launch;
  if (!has_sides_) return;
  const int num_sides = use.max_in_flight - 1;
  const int num_lanes = std::clamp(beside_messages_ / kMinCtas, 1, num_sides);
  side_.num_ctas = limited(beside_messages_ / num_lanes);
  if (num_lanes < num_sides) num_shared_lanes_ = static_cast<std::size_t>(num_lanes);
}

bool KernelRooms::begin(std::size_t slot, Stream stream) {
  if (!has_sides_ || slot != 0 || stream == main_) return false;
  main_ = stream;
  return true;
}

KernelRoom KernelRooms::beside_messages(Stream stream) const {
  KernelRoom room = of(stream);
  if (!is_alone_) return room;
  room.num_ctas = std::max(kMinCtas, std::min(room.num_ctas, beside_messages_));
  room.is_whole_gpu = false;
  return room;
}

}  // namespace switchyard
