// SPDX-License-Identifier: Apache-2.0

#include "measure/bench_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "switchyard/scale_layout.h"

#include "quant/bf16.h"
#include "quant/rows.h"
#include "quant/scheme.h"

namespace switchyard::measure {

using reference::Position;

/// Holds one token at a time: its bytes on the wire and the values they represent.
class BenchOracle::Rows {
 public:
  Rows(const BenchShape& shape, std::int64_t iteration)
      : shape_(shape),
        first_row_(first_row_of(iteration)),
        bf16_(static_cast<std::size_t>(shape.workload.hidden)),
        values_(bf16_.size()),
        bytes_(row_bytes(shape.scheme, shape.workload.hidden)),
        sources_(static_cast<std::size_t>(shape.num_ranks)) {
    if (num_scales(shape.scheme, shape.workload.hidden) > 0) {
      scales_.resize(scale_row_bytes(shape.scheme, shape.workload.hidden));
    }
  }

  /// Spans are valid until the next load.
  void load(int source, std::int64_t token) {
    const std::int64_t hidden = shape_.workload.hidden;
    std::optional<TokenValues>& from = sources_[static_cast<std::size_t>(source)];
    if (!from) from.emplace(hidden, source);
    from->copy_row(first_row_ + token, bf16_.data());
    const float scale = tensor_scale_of(shape_.scheme);
    if (!shape_.scheme.is_quantized()) {
      std::memcpy(bytes_.data(), bf16_.data(), bytes_.size());
    } else {
      if (shape_.scheme.group == ScaleGroup::kTensor) {
        std::memcpy(scales_.data(), &scale, sizeof(scale));
      }
      quantize_row(shape_.scheme, bf16_.data(), DType::kBF16, hidden, bytes_.data(), scales_.data(),
                   scale);
    }
    dequantize_row(shape_.scheme, bytes_.data(), scales_.data(), DType::kBF16, hidden,
                   values_.data(), scale);
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::span<const std::byte> scales() const { return scales_; }
  std::span<const float> values() const { return values_; }
  /// As it was before it was quantized.
  std::vector<float> token() const {
    std::vector<float> token(bf16_.size());
    std::transform(bf16_.begin(), bf16_.end(), token.begin(), f32_from_bf16);
    return token;
  }

 private:
  const BenchShape& shape_;
  std::int64_t first_row_;
  std::vector<std::uint16_t> bf16_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> scales_;
  std::vector<std::optional<TokenValues>> sources_;
};

namespace {

// Counts the elements of `unit` bytes that differ.
std::int64_t count_different(const std::byte* got, std::span<const std::byte> want,
                             std::size_t unit) {
  if (std::memcmp(got, want.data(), want.size()) == 0) return 0;
  std::int64_t count = 0;
  for (std::size_t at = 0; at < want.size(); at += unit) {
    if (std::memcmp(got + at, want.data() + at, unit) != 0) ++count;
  }
  return count;
}

// Counts the bf16 elements that are further from `want` than `tolerance` times its largest; NaN is.
std::int64_t count_far(std::span<const std::uint16_t> got, std::span<const float> want,
                       float tolerance) {
  float largest = 0;
  for (const float x : want) largest = std::max(largest, std::fabs(x));
  std::int64_t count = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float distance = std::fabs(f32_from_bf16(got[i]) - want[i]);
    if (!(distance <= tolerance * largest)) ++count;
  }
  return count;
}

float round_bf16(float x) { return f32_from_bf16(bf16_from_f32(x)); }

std::size_t scale_bytes(const QuantScheme& scheme) {
  return static_cast<std::size_t>(bits_of(scale_dtype(scheme)) / 8);
}

}  // namespace

void scale_by_expert(std::int32_t expert, std::span<const float> in, std::span<float> out) {
  const float factor = 1.0f + 0.37f * static_cast<float>(expert % 7);
  for (std::size_t h = 0; h < in.size(); ++h) out[h] = round_bf16(in[h] * factor);
}

BenchOracle::BenchOracle(const BenchShape& shape, std::int64_t iteration, int rank,
                         ExpertFunction experts, SharedFunction shared)
    : shape_(shape),
      iteration_(iteration),
      rank_(rank),
      experts_(std::move(experts)),
      shared_(std::move(shared)) {
  const std::int64_t num_topk = shape.workload.num_topk;
  batch_.num_experts = shape.workload.num_experts;
  for (int r = 0; r < shape.num_ranks; ++r) {
    reference::RankInput input;
    input.tokens = reference::Table<float>(shape.num_tokens, 0);
    input.topk_ids = {
        shape.num_tokens, num_topk,
        shape.routing.ids(shape.seed, iteration, r, shape.num_ranks, shape.num_tokens)};
    input.topk_weights = {shape.num_tokens, num_topk, topk_weights_of(shape, iteration, r)};
    batch_.ranks.push_back(std::move(input));
  }
  place();
}

void BenchOracle::place() {
  counts_ = reference::dispatch_expanded(batch_, rank_, 1).counts;
  switch (shape_.layout) {
    case Layout::kBatched:
      positions_ = reference::dispatch_batched(batch_, rank_,
                                               shape_.num_ranks * shape_.max_tokens_per_rank())
                       .rows;
      break;
    case Layout::kExpanded: positions_ = reference::dispatch_expanded(batch_, rank_, 1).rows; break;
    case Layout::kByRank:
      positions_ = reference::dispatch_by_rank(batch_, rank_, shape_.max_tokens_per_rank()).rows;
      break;
    default: positions_ = reference::dispatch_compact(batch_, rank_).rows; break;
  }
  std::stable_sort(positions_.begin(), positions_.end(), [](const Position& a, const Position& b) {
    return std::pair(a.source, a.token) < std::pair(b.source, b.token);
  });
}

const std::int32_t* BenchOracle::ids_of(int source, std::int64_t token) const {
  return batch_.ranks[static_cast<std::size_t>(source)].topk_ids.row(token).data();
}

std::int64_t BenchOracle::count_wrong_received(const TensorView& rows, const TensorView& scales,
                                               std::span<const std::int32_t> num_rows) const {
  std::int64_t wrong = 0;
  for (std::size_t e = 0; e < counts_.size(); ++e) {
    if (e >= num_rows.size() || num_rows[e] != counts_[e]) ++wrong;
  }
  if (shape_.scheme.group == ScaleGroup::kTensor &&
      (!scales.has_value() || *scales.as<float>() != tensor_scale_of(shape_.scheme))) {
    ++wrong;
  }
  const std::size_t unit = shape_.scheme.is_quantized() ? 1 : 2;
  const Tensor relaid = row_major_scales(rows, scales);
  const std::byte* const row_major =
      relaid.view().has_value() ? relaid.as<std::byte>() : scales.as<std::byte>();
  Rows want(shape_, iteration_);
  const Position* loaded = nullptr;
  for (const Position& p : positions_) {
    if (loaded == nullptr || loaded->source != p.source || loaded->token != p.token) {
      want.load(p.source, p.token);
      loaded = &p;
    }
    const auto at = static_cast<std::size_t>(p.index);
    wrong += count_different(rows.as<std::byte>() + at * want.bytes().size(), want.bytes(), unit);
    if (want.scales().empty() || shape_.scheme.group == ScaleGroup::kTensor) continue;
    wrong += count_different(row_major + at * want.scales().size(), want.scales(),
                             scale_bytes(shape_.scheme));
  }
  return wrong;
}

// Empty where rows have no scales of their own, or have them in that layout already.
Tensor BenchOracle::row_major_scales(const TensorView& rows, const TensorView& scales) const {
  if (!has_row_scales(shape_.scheme) || shape_.scale_layout == ScaleLayout::kRowMajor) return {};
  const std::int64_t row_bytes = shape_.workload.hidden * bits_of(shape_.scheme.dtype) / 8;
  const std::int64_t num_rows = static_cast<std::int64_t>(rows.num_bytes()) / row_bytes;
  const std::int64_t in_row = num_scales(shape_.scheme, shape_.workload.hidden);
  Tensor result(scales.dtype(), {num_rows, in_row});
  if (num_rows == 0) return result;
  if (shape_.layout == Layout::kBatched) {
    const std::int64_t num_experts = scales.shape(0);
    relayout_scales(scales, TensorView(result.data(), scales.dtype(),
                                       {num_experts, num_rows / num_experts, in_row}));
  } else {
    relayout_scales(scales, result);
  }
  return result;
}

// Adds one f32 fma chain over the choices of `token` whose experts are in [first, last), k
// ascending.
void BenchOracle::add_partial(const Rows& rows, int source, std::int64_t token, std::int32_t first,
                              std::int32_t last, std::span<float> sum) const {
  std::vector<float> result(sum.size());
  const std::int32_t* ids = ids_of(source, token);
  const auto weights = batch_.ranks[static_cast<std::size_t>(source)].topk_weights.row(token);
  for (std::size_t k = 0; k < weights.size(); ++k) {
    if (ids[k] < first || ids[k] >= last) continue;
    experts_(ids[k], rows.values(), result);
    for (std::size_t h = 0; h < sum.size(); ++h) sum[h] = std::fma(weights[k], result[h], sum[h]);
  }
}

Tensor BenchOracle::results(std::int64_t num_buffer_rows) const {
  const std::int64_t hidden = shape_.workload.hidden;
  Tensor tensor(DType::kBF16, {num_buffer_rows, hidden});
  const std::int32_t first =
      reference::first_expert(shape_.workload.num_experts, shape_.num_ranks, rank_);
  const auto last = first + static_cast<std::int32_t>(counts_.size());
  Rows rows(shape_, iteration_);
  std::vector<float> row(static_cast<std::size_t>(hidden));
  const Position* loaded = nullptr;
  for (const Position& p : positions_) {
    if (loaded == nullptr || loaded->source != p.source || loaded->token != p.token) {
      rows.load(p.source, p.token);
      loaded = &p;
    }
    if (is_expert_major(shape_.layout)) {
      experts_(first + p.expert, rows.values(), row);
    } else {
      std::fill(row.begin(), row.end(), 0.0f);
      add_partial(rows, p.source, p.token, first, last, row);
    }
    f32_to_bf16(row.data(), hidden, tensor.as<std::uint16_t>() + p.index * hidden);
  }
  return tensor;
}

// What comes home of a returned row.
void BenchOracle::pass_wire(std::span<float> row) const {
  const QuantScheme& wire = shape_.returned;
  if (!wire.is_quantized()) {
    for (float& x : row) x = round_bf16(x);
    return;
  }
  const auto hidden = static_cast<std::int64_t>(row.size());
  std::vector<std::byte> codes(row_bytes(wire, hidden));
  std::vector<std::byte> scales(scale_row_bytes(wire, hidden));
  quantize_row(wire, row.data(), DType::kF32, hidden, codes.data(), scales.data());
  dequantize_row(wire, codes.data(), scales.data(), DType::kBF16, hidden, row.data());
}

// per_expert: each choice's row returns by itself.
void BenchOracle::add_choices(const Rows& rows, std::int64_t token, std::span<float> sum) const {
  std::vector<float> result(sum.size());
  const std::int32_t* ids = ids_of(rank_, token);
  const auto weights = batch_.ranks[static_cast<std::size_t>(rank_)].topk_weights.row(token);
  for (std::size_t k = 0; k < weights.size(); ++k) {
    if (ids[k] < 0) continue;
    experts_(ids[k], rows.values(), result);
    pass_wire(result);
    for (std::size_t h = 0; h < sum.size(); ++h) sum[h] = std::fma(weights[k], result[h], sum[h]);
  }
}

// per_expert: one chain over all choices. per_rank: one partial sum per rank, as the wire rounds
// it, in token-major layouts from bf16; they are added in ascending order of each rank's highest
// choice. per_host: for each host in ascending order of ranks, rounded once more; then hosts
// ascending.
void BenchOracle::expected_output(const Rows& rows, std::int64_t token,
                                  std::span<float> sum) const {
  std::fill(sum.begin(), sum.end(), 0.0f);
  const std::int32_t num_experts = shape_.workload.num_experts;
  if (shape_.reduce == Reduce::kPerExpert) {
    add_choices(rows, token, sum);
    return;
  }
  const std::int32_t* ids = ids_of(rank_, token);
  const auto owner_of = [&](std::int32_t id) {
    return reference::owner_of(num_experts, shape_.num_ranks, id);
  };
  std::vector<int> owners;  // in the order in which their partial sums are added
  for (std::int32_t k = 0; k < shape_.workload.num_topk; ++k) {
    if (ids[k] < 0) continue;
    std::erase(owners, owner_of(ids[k]));
    owners.push_back(owner_of(ids[k]));
  }
  const bool is_per_host = shape_.reduce == Reduce::kPerHost;
  const auto host_of = [&](int rank) {
    return shape_.hosts.empty() ? 0 : shape_.hosts[static_cast<std::size_t>(rank)];
  };
  if (is_per_host) {
    std::sort(owners.begin(), owners.end(),
              [&](int a, int b) { return std::pair(host_of(a), a) < std::pair(host_of(b), b); });
  }
  std::vector<float> partial(sum.size());
  std::vector<float> of_host(sum.size());
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const int owner = owners[i];
    const std::int32_t first = reference::first_expert(num_experts, shape_.num_ranks, owner);
    const std::int32_t count = reference::num_local_experts(num_experts, shape_.num_ranks, owner);
    std::fill(partial.begin(), partial.end(), 0.0f);
    add_partial(rows, rank_, token, first, first + count, partial);
    if (!is_expert_major(shape_.layout)) {
      for (float& x : partial) x = round_bf16(x);
    }
    pass_wire(partial);
    std::span<float> to = is_per_host ? std::span<float>(of_host) : sum;
    for (std::size_t h = 0; h < sum.size(); ++h) to[h] += partial[h];
    const bool is_last = i + 1 == owners.size() || host_of(owners[i + 1]) != host_of(owner);
    if (!is_per_host || !is_last) continue;
    pass_wire(of_host);
    for (std::size_t h = 0; h < sum.size(); ++h) sum[h] += of_host[h];
    std::fill(of_host.begin(), of_host.end(), 0.0f);
  }
}

// To the rounded sum.
void BenchOracle::add_shared(const Rows& rows, std::span<float> sum) const {
  std::vector<float> row(sum.size());
  shared_(rows.token(), row);
  for (std::size_t h = 0; h < sum.size(); ++h) sum[h] = round_bf16(sum[h]) + row[h];
}

std::int64_t BenchOracle::count_wrong_output(const TensorView& output, std::int64_t max_tokens,
                                             float tolerance) const {
  const std::int64_t hidden = shape_.workload.hidden;
  const std::int64_t last = shape_.num_tokens - 1;
  const std::int64_t num_checked =
      max_tokens == 0 ? shape_.num_tokens : std::min(max_tokens, shape_.num_tokens);
  std::vector<float> sum(static_cast<std::size_t>(hidden));
  std::vector<std::uint16_t> want(sum.size());
  Rows rows(shape_, iteration_);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < num_checked; ++i) {
    const std::int64_t t = num_checked == 1 ? 0 : i * last / (num_checked - 1);
    rows.load(rank_, t);
    expected_output(rows, t, sum);
    if (shared_) add_shared(rows, sum);
    if (tolerance > 0) {
      wrong +=
          count_far({output.as<const std::uint16_t>() + t * hidden, sum.size()}, sum, tolerance);
      continue;
    }
    f32_to_bf16(sum.data(), hidden, want.data());
    wrong +=
        count_different(output.as<std::byte>() + t * hidden * 2, std::as_bytes(std::span(want)), 2);
  }
  return wrong;
}

}  // namespace switchyard::measure
