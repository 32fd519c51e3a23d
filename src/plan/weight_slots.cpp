// SPDX-License-Identifier: Apache-2.0

#include "plan/weight_slots.h"

#include "core/bytes.h"
#include "plan/window_layout.h"

namespace switchyard {

WeightSlots make_weight_slots(std::int64_t max_tokens, std::int32_t num_ranks,
                              std::int32_t num_topk) {
  constexpr std::size_t kSlotBytes = sizeof(std::uint64_t);
  const std::size_t choices = checked_mul(static_cast<std::size_t>(max_tokens),
                                          static_cast<std::size_t>(num_topk) * kSlotBytes);
  WeightSlots slots;
  slots.num_topk = num_topk;
  slots.choices_offset = align_up(static_cast<std::size_t>(num_ranks) * kSlotBytes, kLineBytes);
  slots.set_bytes = align_up(checked_add(slots.choices_offset, choices), kLineBytes);
  slots.total_bytes = checked_mul<std::size_t>(2, slots.set_bytes);
  return slots;
}

}  // namespace switchyard
