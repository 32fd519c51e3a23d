// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/crossing.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/carver.h"
#include "core/round_up.h"
#include "exchange/push/received_memory.h"

namespace switchyard {
namespace {

// Takes offsets in a message.
class Offsets {
 public:
  std::size_t take(std::int64_t count, std::size_t bytes) {
    const std::size_t at = parts_.used_bytes();
    parts_.carve(checked_mul(static_cast<std::size_t>(count), bytes));
    return at;
  }
  std::size_t num_bytes() const { return parts_.used_bytes(); }

 private:
  Carver parts_{nullptr, kPartAlignment};
};

// With room for whole vectors.
std::int64_t row_stride(const PushShape& shape) {
  const std::int64_t vec_bytes = std::int64_t{kVecElements} * shape.element_bits / 8;
  return align_up(cdiv<std::int64_t>(shape.hidden, kVecElements) * vec_bytes,
                  static_cast<std::int64_t>(kUnitBytes));
}

}  // namespace

DispatchMessage dispatch_message(const std::vector<cuda::DispatchArgs>& regions,
                                 std::int64_t max_tokens) {
  const cuda::DispatchArgs& last = regions.back();
  const std::int64_t num_choices = max_tokens * last.num_topk;
  Offsets offsets;
  DispatchMessage message;
  message.mode = offsets.take(1, sizeof(std::uint32_t));
  message.ids = offsets.take(num_choices, sizeof(std::int32_t));
  message.weights = offsets.take(last.layout.shape.sends_weights ? num_choices : 0, sizeof(float));
  for (const cuda::DispatchArgs& region : regions) {
    CrossingRows& rows = message.regions.emplace_back();
    rows.stride = row_stride(region.layout.shape);
    rows.rows = offsets.take(max_tokens, static_cast<std::size_t>(rows.stride));
    const ScaleGeometry& scales = region.scales.block;
    rows.has_scales = region.layout.shape.chunk_scale_bytes > 0 && scales.num_scales > 0;
    if (!rows.has_scales) continue;
    rows.scales = offsets.take(max_tokens, static_cast<std::size_t>(scales.num_scales) *
                                               static_cast<std::size_t>(scales.element_bytes));
  }
  message.num_bytes = offsets.num_bytes();
  return message;
}

ReturnMessage return_message(const PushExchangeShape& shape, int host_size,
                             std::int64_t max_tokens) {
  const bool by_choice = shape.main.shape.keeps_every_choice;
  Offsets offsets;
  ReturnMessage message;
  message.width = by_choice ? shape.main_topk : std::min(shape.main_topk, host_size);
  if (shape.config.reduce == Reduce::kPerHost) message.width = 1;  // their sum
  offsets.take(max_tokens * message.width, shape.main.return_stride);
  if (shape.returns_weights) {
    message.num_records =
        static_cast<std::int64_t>(shape.weights.choices_offset / sizeof(std::uint64_t)) +
        max_tokens * shape.config.num_topk;
  }
  message.weights = offsets.take(message.num_records, sizeof(std::uint64_t));
  message.num_bytes = offsets.num_bytes();
  return message;
}

ReturnPart return_part(const PushExchangeShape& shape) {
  Offsets offsets;
  ReturnPart part;
  offsets.take(1, shape.main.total_bytes - shape.main.returns_offset);
  part.weights = offsets.take(1, shape.weights.total_bytes);
  part.num_bytes = offsets.num_bytes();
  return part;
}

}  // namespace switchyard
