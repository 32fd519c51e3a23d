// SPDX-License-Identifier: Apache-2.0
//
// What one round gives to the exchange, and where the oracle puts it.

#include "conformance/exchange_round.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "engine/control.h"

namespace switchyard::conformance {

using reference::Batch;
using reference::Position;
using reference::RankInput;
using reference::Table;

namespace {

constexpr float kTensorScale = 0.03f;
constexpr float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(), -0.0f, 0x1p-20f,
                              -std::numeric_limits<float>::infinity(), 0x1p15f};

Table<std::uint8_t> random_bytes(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Table<std::uint8_t> table(rows, cols);
  std::uint64_t counter = 0;
  for (std::uint8_t& byte : table.data) {
    byte = static_cast<std::uint8_t>(random_bits(seed, counter++));
  }
  return table;
}

}  // namespace

Round::Round(const Group& group, const ExchangeCase& test, int number)
    : test_(&test), rank_(group.rank()), num_ranks_(group.size()) {
  for (int r = 0; r < num_ranks_; ++r) hosts_.push_back(group.control().host_of(r));
  const auto seed = test.seed * 1000 + static_cast<std::uint64_t>(number) * 10;
  const std::int64_t num_tokens =
      number == 3 ? 1 : std::max<std::int64_t>(0, test.num_tokens - number);
  BatchShape ids_only = test.shape;
  ids_only.hidden = 0;  // make_tokens() brings the elements
  wanted_ = split(random_tokens(ids_only, num_tokens, seed), test.shape.num_experts, num_ranks_);
  wanted_.experts_per_rank = test.experts_per_rank();
  make_tokens(seed);
  batch_ = test.capacity == 0
               ? wanted_
               : reference::drop_overflow(wanted_, test.capacity, test.sends_weights);
  send();
}

Round::Round(const Round& earlier, int number) : Round(earlier) {
  make_tokens(test_->seed * 1000 + static_cast<std::uint64_t>(number) * 10);
  for (std::size_t r = 0; r < batch_.ranks.size(); ++r) {
    batch_.ranks[r].tokens = wanted_.ranks[r].tokens;
    batch_.ranks[r].topk_weights = wanted_.ranks[r].topk_weights;
  }
  send();
}

Round Round::reopened() const {
  Round round = *this;
  for (RankInput& input : round.batch_.ranks) {
    std::fill(input.topk_weights.data.begin(), input.topk_weights.data.end(), 1.0f);
  }
  for (int r = 0; r < num_ranks_; ++r) round.placed_[static_cast<std::size_t>(r)] = round.place(r);
  return round;
}

// Tokens, weights, payloads and bias of all ranks; ids stay.
void Round::make_tokens(std::uint64_t seed) {
  const std::int64_t hidden = test_->shape.hidden;
  const bool weighs = test_->sends_weights || test_->reduce == Reduce::kPerExpert;
  payloads_.assign(wanted_.ranks.size(), {});
  for (std::size_t r = 0; r < wanted_.ranks.size(); ++r) {
    RankInput& input = wanted_.ranks[r];
    const std::uint64_t rank_seed = seed * 100 + r * 10;
    input.tokens = random_table(input.num_tokens(), hidden, rank_seed);
    // f16 and f32 get values that bf16 cannot hold.
    if (test_->input != DType::kBF16) {
      for (float& x : input.tokens.data)
        x = reference::round_to(test_->input, x * (1 + 3 * 0x1p-9f));
    }
    if (test_->seed % 3 == 0 && input.tokens.data.size() >= std::size(kSpecial)) {
      std::copy(std::begin(kSpecial), std::end(kSpecial), input.tokens.data.begin());
    }
    std::uint64_t counter = 0;
    for (float& weight : input.topk_weights.data) {
      weight = static_cast<float>(random_uniform(rank_seed + 1, counter++));
      if (!weighs || !test_->has_weights(static_cast<int>(r))) weight = 1.0f;
    }
    for (std::size_t i = 0; i < test_->payload_bytes.size(); ++i) {
      payloads_[r].push_back(
          random_bytes(input.num_tokens(), test_->payload_bytes[i], rank_seed + 2 + i));
    }
  }
  const std::int64_t num_tokens = wanted_.ranks[static_cast<std::size_t>(rank_)].num_tokens();
  bias_.clear();
  bias_bytes_.clear();
  for (int i = 0; i < test_->num_bias; ++i) {
    bias_.push_back(random_table(num_tokens, hidden, seed + 5 + static_cast<std::uint64_t>(i)));
    bias_bytes_.push_back(encode(DType::kBF16, bias_.back()));
  }
}

// What travels, and the bytes that the caller gives.
void Round::send() {
  const QuantScheme& scheme = test_->scheme;
  const RankInput& mine = wanted_.ranks[static_cast<std::size_t>(rank_)];
  token_stride_ = test_->shape.hidden + (test_->seed % 2 == 0 ? 6 : 0);
  token_bytes_ = encode(test_->input, mine.tokens, token_stride_);
  wide_ids_.assign(mine.topk_ids.data.begin(), mine.topk_ids.data.end());
  sent_.clear();
  for (RankInput& input : batch_.ranks) {
    if (!scheme.is_quantized()) {
      input.tokens = rounded(scheme.dtype, input.tokens);
      continue;
    }
    sent_.push_back(reference::quantize(scheme, input.tokens, kTensorScale));
  }
  if (test_->is_quantized_input) {
    const reference::QuantizedRows& rows = sent_[static_cast<std::size_t>(rank_)];
    token_bytes_ = stored_bytes(scheme, rows);
    token_stride_ = test_->shape.hidden;
    // Transposed: scales of a caller may have any strides.
    const Bytes in_rows = scale_bytes(scheme, rows);
    const std::int64_t num = num_scales(scheme, test_->shape.hidden);
    const auto per_row = static_cast<std::size_t>(scheme.group == ScaleGroup::kTensor ? 0 : num);
    const auto num_tokens = static_cast<std::size_t>(mine.num_tokens());
    const std::size_t width = static_cast<std::size_t>(bits_of(scale_dtype(scheme)) / 8);
    scale_bytes_.assign(in_rows.size(), {});
    for (std::size_t t = 0; t < num_tokens; ++t) {
      for (std::size_t s = 0; s < per_row; ++s) {
        std::copy_n(
            in_rows.begin() + static_cast<std::ptrdiff_t>((t * per_row + s) * width), width,
            scale_bytes_.begin() + static_cast<std::ptrdiff_t>((s * num_tokens + t) * width));
      }
    }
  }
  placed_.clear();
  for (int r = 0; r < num_ranks_; ++r) placed_.push_back(place(r));
}

TensorView Round::tokens() const {
  const std::int64_t hidden = test_->shape.hidden;
  const DType dtype = test_->is_quantized_input ? test_->scheme.dtype : test_->input;
  return TensorView(token_bytes_.data(), dtype, {num_tokens(), hidden}, {token_stride_, 1});
}

TensorView Round::ids(bool wide) const {
  const std::int64_t num_topk = test_->shape.num_topk;
  if (num_topk == 0) return {};
  const RankInput& mine = wanted_.ranks[static_cast<std::size_t>(rank_)];
  return wide ? TensorView::of(wide_ids_.data(), {num_tokens(), num_topk})
              : TensorView::of(mine.topk_ids.data.data(), {num_tokens(), num_topk});
}

TensorView Round::weights() const {
  const bool weighs = test_->sends_weights || test_->reduce == Reduce::kPerExpert;
  if (!weighs || !test_->has_weights(rank_) || test_->gives_weights_to_combine()) return {};
  return TensorView::of(own().topk_weights.data.data(),
                        {num_tokens(), std::int64_t{test_->shape.num_topk}});
}

DispatchOptions Round::dispatch_options() const {
  static constexpr float kScale = kTensorScale;
  const QuantScheme& scheme = test_->scheme;
  DispatchOptions options;
  if (scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale()) {
    options.tensor_scale = TensorView::of(&kScale, {1});
  }
  if (test_->is_quantized_input && scheme.group != ScaleGroup::kTensor) {
    options.scales =
        TensorView(scale_bytes_.data(), scale_dtype(scheme),
                   {num_tokens(), num_scales(scheme, test_->shape.hidden)}, {1, num_tokens()});
  }
  for (const Table<std::uint8_t>& payload : payloads_[static_cast<std::size_t>(rank_)]) {
    options.payloads.push_back(TensorView::of(payload.data.data(), {payload.rows, payload.cols}));
  }
  if (test_->limits_calls) options.max_tokens = max_tokens();
  return options;
}

CombineOptions Round::combine_options() const {
  CombineOptions options;
  if (test_->gives_weights_to_combine()) {
    options.topk_weights = TensorView::of(own().topk_weights.data.data(),
                                          {num_tokens(), std::int64_t{test_->shape.num_topk}});
  }
  for (const Bytes& bytes : bias_bytes_) {
    options.bias.emplace_back(
        bytes.data(), DType::kBF16,
        std::initializer_list<std::int64_t>{num_tokens(), test_->shape.hidden});
  }
  return options;
}

std::int64_t Round::max_tokens() const {
  if (!test_->limits_calls) return test_->config().max_tokens_per_rank;
  std::int64_t most = 1;
  for (const RankInput& input : wanted_.ranks) most = std::max(most, input.num_tokens());
  return most;
}

std::int64_t Round::capacity() const {
  return test_->capacity > 0 ? test_->capacity : num_ranks_ * test_->config().max_tokens_per_rank;
}

Round::Placed Round::place(int rank) const {
  switch (test_->layout) {
    case Layout::kBatched: return {reference::dispatch_batched(batch_, rank, capacity()), {}};
    case Layout::kExpanded:
      return {reference::dispatch_expanded(batch_, rank, test_->alignment), {}};
    case Layout::kCompact: return {{}, reference::dispatch_compact(batch_, rank)};
    case Layout::kByRank: return {{}, reference::dispatch_by_rank(batch_, rank, max_tokens())};
    case Layout::kAllGather: return {{}, reference::dispatch_all_gather(batch_, rank)};
  }
  return {};
}

const std::vector<Position>& Round::positions(int rank) const {
  return is_major() ? placed(rank).by_expert.rows : placed(rank).by_token.rows;
}

// Rows of the receive buffer in use.
std::int64_t Round::num_rows(int rank) const {
  const std::int64_t used =
      is_major() ? placed(rank).by_expert.num_rows : placed(rank).by_token.num_rows;
  const bool is_fixed = test_->layout == Layout::kBatched || test_->layout == Layout::kByRank;
  if (!test_->worst_case_rows || is_fixed) return used;
  const std::int64_t tokens = num_ranks_ * max_tokens();
  if (test_->layout != Layout::kExpanded) return tokens;
  const std::int64_t local = wanted_.num_local_experts(rank);
  std::int64_t rows = local == 0 ? 0 : tokens * test_->shape.num_topk;
  if (test_->capacity > 0) rows = std::min(rows, local * test_->capacity);
  return rows + std::min(local, rows) * (test_->alignment - 1);
}

}  // namespace switchyard::conformance
