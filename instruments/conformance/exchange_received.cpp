// SPDX-License-Identifier: Apache-2.0
//
// What arrived against the oracle: counts, origins, every byte of rows, scales, payloads, ids and
// weights, and that padding is zero where it is promised to be.

#include <algorithm>
#include <cstring>
#include <set>

#include "conformance/exchange_round.h"

namespace switchyard::conformance {

using reference::Position;
using reference::Table;

namespace {

template <typename T>
bool is_table(const TensorView& got, const std::vector<std::int64_t>& want) {
  return got.num_elements() == static_cast<std::int64_t>(want.size()) &&
         std::equal(want.begin(), want.end(), got.as<T>());
}

}  // namespace

void Round::check_received(const Received& received) const {
  const Dispatched& got = received.rows;
  check_counts(got);
  if (got.host.has_value()) check_host_counts(received);
  check_rows(got);
  check_scales(got);
  check_payloads(got);
  check_routing(got);
  check_padding(got);
}

void Round::check_counts(const Dispatched& got) const {
  const auto num_positions = static_cast<std::int64_t>(positions(rank_).size());
  const std::int64_t total = *got.total_rows.as<std::int32_t>();
  expect(total == num_positions, "{} rows, expected {}", total, num_positions);
  const std::int64_t num_buffer_rows = got.experts.rows.num_elements() / test_->shape.hidden;
  expect(num_buffer_rows == num_rows(rank_), "buffer of {} rows, expected {}", num_buffer_rows,
         num_rows(rank_));
  // Rows of an expert are counted alike in every layout.
  const std::vector<std::int64_t> counts = reference::dispatch_expanded(batch_, rank_, 1).counts;
  expect(is_table<std::int32_t>(got.experts.num_rows, counts), "rows of experts differ");
  const auto& first_row = placed(rank_).by_expert.first_row;
  expect(is_major() ? is_table<std::int64_t>(got.experts.first_row, first_row)
                    : !got.experts.first_row.has_value(),
         "starts of experts differ");
  if (!got.num_dropped.has_value()) return;
  const auto& asked = wanted_.ranks[static_cast<std::size_t>(rank_)].topk_ids.data;
  std::int32_t dropped = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) dropped += asked[i] != own().topk_ids.data[i];
  const std::int32_t told = *got.num_dropped.as<std::int32_t>();
  expect(told == dropped, "{} choices dropped, expected {}", told, dropped);
}

// What the host is told beside the rows.
void Round::check_host_counts(const Received& received) const {
  const HostCounts& got = *received.rows.host;
  expect(got.num_rows == *received.rows.total_rows.as<std::int32_t>(), "another total");
  const std::vector<std::int64_t> counts = reference::dispatch_expanded(batch_, rank_, 1).counts;
  const bool has_counts = !received.is_from_gpu || test_->layout != Layout::kAllGather;
  expect(!has_counts || std::ranges::equal(got.rows_per_expert, counts), "rows of experts differ");
  std::vector<std::set<std::int64_t>> tokens(static_cast<std::size_t>(num_ranks_));
  for (const Position& p : positions(rank_))
    tokens[static_cast<std::size_t>(p.source)].insert(p.token);
  expect(got.rows_per_rank.size() == tokens.size(), "not an entry for each rank");
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    expect(got.rows_per_rank[r] == static_cast<std::int64_t>(tokens[r].size()),
           "{} tokens of rank {}, expected {}", got.rows_per_rank[r], r, tokens[r].size());
  }
  if (received.is_from_gpu) return;
  check_origins(received.origins);
  std::vector<std::int64_t> load(static_cast<std::size_t>(test_->shape.num_experts), 0);
  for (const reference::RankInput& input : wanted_.ranks) {
    for (const std::int32_t id : input.topk_ids.data) {
      if (id >= 0) ++load[static_cast<std::size_t>(id)];
    }
  }
  expect(std::ranges::equal(got.expert_load, load), "loads of experts differ");
  expect(got.wait_ns.size() == tokens.size(), "not a wait for each rank");
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    expect(got.wait_ns[r] >= 0, "wait for rank {} is {} ns", r, got.wait_ns[r]);
  }
  expect(got.wait_ns[static_cast<std::size_t>(rank_)] == 0, "a wait for itself");
}

void Round::check_origins(const std::vector<RowOrigin>& origins) const {
  const std::vector<Position>& want = positions(rank_);
  expect(origins.size() == want.size(), "{} origins, expected {}", origins.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const Position& p = want[i];
    const auto& weights = batch_.ranks[static_cast<std::size_t>(p.source)].topk_weights;
    const float weight = is_major() && test_->sends_weights ? weights(p.token, p.slot) : 1.0f;
    expect(
        origins[i].row == p.index && origins[i].expert == p.expert && origins[i].rank == p.source &&
            origins[i].token == p.token && origins[i].k == p.slot && origins[i].weight == weight,
        "origin of row {} is row {} expert {} rank {} token {} k {} weight {}", i, origins[i].row,
        origins[i].expert, origins[i].rank, origins[i].token, origins[i].k, origins[i].weight);
  }
}

void Round::check_rows(const Dispatched& got) const {
  const QuantScheme& scheme = test_->scheme;
  expect(got.experts.scheme == scheme, "another scheme");
  expect(got.experts.rows.dtype() == stored_dtype(scheme), "another dtype");
  const std::size_t width = element_row_bytes(scheme, test_->shape.hidden);
  Bytes want;
  if (scheme.is_quantized()) {
    want = stored_bytes(scheme, reference::receive(sent_, positions(rank_), num_rows(rank_)));
  } else {
    want = encode(scheme.dtype, reference::receive(batch_, positions(rank_), num_rows(rank_)));
  }
  for (const Position& p : positions(rank_)) {
    const std::size_t at = static_cast<std::size_t>(p.index) * width;
    expect(std::memcmp(got.experts.rows.as<std::byte>() + at, want.data() + at, width) == 0,
           "row {} differs", p.index);
  }
}

void Round::check_scale_shape(const TensorView& scales, std::int64_t num_scales) const {
  const bool is_batched = test_->layout == Layout::kBatched;
  const std::int64_t local = wanted_.num_local_experts(rank_);
  const std::int64_t rows = is_batched ? capacity() : num_rows(rank_);
  std::vector<std::int64_t> shape;
  if (is_batched) shape.push_back(local);
  if (test_->scale_layout == ScaleLayout::kSwizzled) {
    for (const std::int64_t size : {(rows + 127) / 128, (num_scales + 3) / 4, 32L, 4L, 4L}) {
      shape.push_back(size);
    }
  } else {
    shape.push_back(rows);
    shape.push_back(num_scales);
  }
  expect(scales.num_dims() == static_cast<int>(shape.size()), "scales are {}", scales.describe());
  for (int d = 0; d < scales.num_dims(); ++d) {
    expect(scales.shape(d) == shape[static_cast<std::size_t>(d)], "scales are {}",
           scales.describe());
  }
  const bool is_column_major = test_->scale_layout == ScaleLayout::kColumnMajor ||
                               test_->scale_layout == ScaleLayout::kColumnMajorAligned;
  if (!is_column_major) return expect(scales.is_contiguous(), "scales are {}", scales.describe());
  const int d = is_batched ? 1 : 0;
  const std::int64_t column =
      scale_index(test_->scale_layout, std::max<std::int64_t>(rows, 1), 2, 0, 1);
  expect(rows == 0 || (scales.stride(d) == 1 && scales.stride(d + 1) == column), "scales are {}",
         scales.describe());
  expect(!is_batched || scales.stride(0) == column * num_scales || rows == 0, "scales are {}",
         scales.describe());
}

void Round::check_scales(const Dispatched& got) const {
  const QuantScheme& scheme = test_->scheme;
  const TensorView& scales = got.experts.scales;
  const bool has_tensor_scale = got.experts.tensor_scale.has_value();
  expect(has_tensor_scale == scheme.needs_tensor_scale(), "a tensor scale where none belongs");
  if (!scheme.is_quantized() || scheme.is_simulated()) {
    return expect(!scales.has_value(), "scales without a scheme");
  }
  const auto rows = reference::receive(sent_, positions(rank_), num_rows(rank_));
  if (scheme.group == ScaleGroup::kTensor) {
    expect(scales.num_elements() == 1 && *scales.as<float>() == sent_[0].scales(0, 0),
           "the tensor's scale differs");
    return;
  }
  const std::int64_t num = num_scales(scheme, test_->shape.hidden);
  check_scale_shape(scales, num);
  const Bytes want = scale_bytes(scheme, rows);
  const auto width = static_cast<std::size_t>(bits_of(scale_dtype(scheme)) / 8);
  const std::int64_t block = test_->layout == Layout::kBatched ? capacity() : num_rows(rank_);
  std::set<std::int64_t> used;
  for (const Position& p : positions(rank_)) {
    for (std::int64_t s = 0; s < num; ++s) {
      const std::int64_t at = scale_index(test_->scale_layout, block, num, p.index, s);
      used.insert(at);
      expect(std::memcmp(scales.as<std::byte>() + static_cast<std::size_t>(at) * width,
                         want.data() + static_cast<std::size_t>(p.index * num + s) * width,
                         width) == 0,
             "scale {} of row {} differs", s, p.index);
    }
  }
  const bool is_cleared = test_->zero_padding || (test_->scale_layout == ScaleLayout::kSwizzled &&
                                                  test_->layout != Layout::kBatched);
  for (std::int64_t i = 0; is_cleared && i < scales.num_elements(); ++i) {
    if (used.contains(i)) continue;
    for (std::size_t b = 0; b < width; ++b) {
      expect(scales.as<std::byte>()[static_cast<std::size_t>(i) * width + b] == std::byte{0},
             "padding scale {} is not zero", i);
    }
  }
}

void Round::check_payloads(const Dispatched& got) const {
  expect(got.payloads.size() == test_->payload_bytes.size(), "{} payloads", got.payloads.size());
  for (std::size_t i = 0; i < got.payloads.size(); ++i) {
    const TensorView& payload = got.payloads[i];
    const std::int64_t bytes = test_->payload_bytes[i];
    expect(payload.dtype() == DType::kU8 && payload.shape(0) == num_rows(rank_) &&
               payload.shape(1) == bytes,
           "payload {} is {}", i, payload.describe());
    for (const Position& p : positions(rank_)) {
      const Table<std::uint8_t>& sent = payloads_[static_cast<std::size_t>(p.source)][i];
      expect(std::memcmp(payload.as<std::uint8_t>() + p.index * bytes, sent.row(p.token).data(),
                         static_cast<std::size_t>(bytes)) == 0,
             "payload {} of row {} differs", i, p.index);
    }
  }
}

void Round::check_routing(const Dispatched& got) const {
  const std::int64_t num_topk = test_->shape.num_topk;
  const std::int64_t rows = num_rows(rank_);
  const bool has_ids = !is_major() && num_topk > 0;
  const bool has_weights = test_->sends_weights && (is_major() || num_topk > 0);
  expect(got.topk_ids.has_value() == has_ids, "topk_ids is {}", got.topk_ids.describe());
  expect(got.topk_weights.has_value() == has_weights, "topk_weights is {}",
         got.topk_weights.describe());
  const std::int64_t columns = is_major() ? 1 : num_topk;
  Table<float> weights(rows, columns);
  Table<std::int32_t> ids(rows, columns, -1);
  for (const Position& p : positions(rank_)) {
    const reference::RankInput& source = batch_.ranks[static_cast<std::size_t>(p.source)];
    const reference::RankMajor& by_token = placed(rank_).by_token;
    for (std::int64_t c = 0; c < columns; ++c) {
      weights(p.index, c) = source.topk_weights(p.token, is_major() ? p.slot : c);
      if (is_major()) continue;
      ids(p.index, c) = test_->layout == Layout::kCompact ? by_token.local_ids(p.index, c)
                                                          : by_token.topk_ids(p.index, c);
    }
  }
  if (has_ids) {
    expect(got.topk_ids.shape(0) == rows && got.topk_ids.shape(1) == num_topk &&
               std::equal(ids.data.begin(), ids.data.end(), got.topk_ids.as<std::int32_t>()),
           "topk_ids differ");
  }
  if (has_weights) {
    expect(got.topk_weights.num_elements() == rows * columns &&
               got.topk_weights.num_dims() == (is_major() ? 1 : 2) &&
               std::equal(weights.data.begin(), weights.data.end(), got.topk_weights.as<float>()),
           "topk_weights differ");
  }
}

// Rows and payloads that no token fills; scales and weights are looked at with the others.
void Round::check_padding(const Dispatched& got) const {
  if (!test_->zero_padding) return;
  std::set<std::int64_t> filled;
  for (const Position& p : positions(rank_)) filled.insert(p.index);
  const auto check = [&](const TensorView& rows, std::size_t width) {
    for (std::int64_t row = 0; row < num_rows(rank_); ++row) {
      if (filled.contains(row)) continue;
      const std::byte* data = rows.as<std::byte>() + static_cast<std::size_t>(row) * width;
      expect(std::all_of(data, data + width, [](std::byte b) { return b == std::byte{0}; }),
             "padding row {} is not zero", row);
    }
  };
  check(got.experts.rows, element_row_bytes(test_->scheme, test_->shape.hidden));
  for (std::size_t i = 0; i < got.payloads.size(); ++i) {
    check(got.payloads[i], static_cast<std::size_t>(test_->payload_bytes[i]));
  }
}

}  // namespace switchyard::conformance
