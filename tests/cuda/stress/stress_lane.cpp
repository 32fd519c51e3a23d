// SPDX-License-Identifier: Apache-2.0

#include "stress_lane.h"

namespace switchyard::test {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

template <typename T>
T* data_of(const TensorView& view) {
  return view.has_value() ? reinterpret_cast<T*>(const_cast<std::byte*>(view.as<std::byte>()))
                          : nullptr;
}

}  // namespace

StressLane::StressLane(const StressShape& s, std::int64_t max_rows)
    : tokens(size(s.max_tokens) * size(s.token_bytes())),
      scales(size(s.max_tokens) * size(s.num_scales()) * 4 + 4),
      ids(size(s.max_tokens) * size(s.num_topk) * 8),
      weights(size(s.max_tokens) * size(s.num_topk) * 4),
      payload(size(s.max_tokens) * size(s.payload_words) * 4 + 4),
      output(size(s.max_tokens) * size(s.hidden) * 4),
      returned(size(s.max_tokens) * size(s.num_topk) * 4),
      results(size(max_rows) * size(s.hidden) * 2),
      row_weights(size(max_rows) * size(s.num_topk) * 4),
      rows(size(max_rows) * sizeof(StressRow)),
      first_row(size(s.num_local) * sizeof(std::int64_t)) {
  const std::size_t local = size(s.num_local);
  const std::size_t num_counts = (local + 1) * size(s.num_ranks * stress_chunks(s));
  counts = cuda::DeviceBuffer((num_counts + local + 1) * sizeof(std::int32_t));
  input = {.tokens = tokens.as<std::uint32_t>(),
           .scales = scales.data(),
           .ids = ids.data(),
           .weights = weights.as<float>(),
           .payload = payload.as<std::uint32_t>(),
           .output = output.data(),
           .returned = returned.as<std::uint32_t>()};
  plan.rows = rows.as<StressRow>();
  plan.counts = counts.as<std::int32_t>();
  plan.num_rows = plan.counts + num_counts;
  plan.total = plan.num_rows + local;
  plan.first_row = first_row.as<std::int64_t>();
  plan.capacity = s.capacity > 0 ? s.capacity : std::int64_t{s.num_ranks} * s.max_tokens;
}

void StressLane::receive(const Dispatched& dispatched) {
  got = dispatched;
  const ExpertRows& experts = got.experts;
  received = {
      .rows = data_of<std::byte>(experts.rows),
      .scales = data_of<std::byte>(experts.scales),
      .num_rows = data_of<std::int32_t>(experts.num_rows),
      .first_row = data_of<std::int64_t>(experts.first_row),
      .total_rows = data_of<std::int32_t>(got.total_rows),
      .ids = data_of<std::int32_t>(got.topk_ids),
      .weights = data_of<float>(got.topk_weights),
      .payload = got.payloads.empty() ? nullptr : data_of<std::uint32_t>(got.payloads.front()),
      .num_dropped = data_of<std::int32_t>(got.num_dropped)};
}

}  // namespace switchyard::test
