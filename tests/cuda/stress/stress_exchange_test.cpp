// SPDX-License-Identifier: Apache-2.0
//
// The rule of the stress test matches the CPU exchange: the bytes of each row at its place, scales,
// ids and weights, and exact sums. Needs no GPU.

#include <cstring>
#include <vector>

#include "switchyard/exchange.h"

#include "stress_case.h"
#include "support/ranks.h"

namespace switchyard::test {
namespace {

constexpr int kNumRanks = 3;
constexpr std::uint32_t kNumSteps = 40;

template <typename T>
void put(std::vector<std::byte>& to, std::size_t index, T value) {
  std::memcpy(to.data() + index * sizeof(T), &value, sizeof(T));
}

template <typename T>
T get(const TensorView& from, std::int64_t index) {
  T value;
  std::memcpy(&value, from.as<std::byte>() + index * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

class RuleRank {
 public:
  RuleRank(const Group& group, const StressCase& c)
      : case_(c), shape_(case_.shape), exchange_(group, config_of(c)) {
    shape_.rank = group.rank();
  }

  void step(std::uint32_t step) {
    StressTurn turn = stress_turn(shape_, step);
    if (turn == StressTurn::kAgain && step == 0) turn = StressTurn::kPair;
    if (turn != StressTurn::kAgain) routing_ = {step, step};
    step_ = step;
    num_tokens_ = stress_tokens(shape_, routing_.slot, shape_.rank);
    make_input();
    const Dispatched got = dispatch(turn == StressTurn::kAgain);
    earlier_ = got.handle;
    const std::vector<RowOrigin> origins = exchange_.row_origins(got.handle);
    for (const RowOrigin& origin : origins) expect_row(got, origin);
    if (turn == StressTurn::kRelease) return exchange_.release(got.handle);
    const std::int64_t num_rows = got.experts.rows.num_elements() / shape_.hidden;
    combine(got.handle, num_rows, origins, shape_.returns_weights);
    if (turn != StressTurn::kReopen) return;
    is_unweighted_ = true;
    combine(exchange_.reopen(got.handle), num_rows, origins, false);
    is_unweighted_ = false;
  }

  int num_dropped() const { return num_dropped_; }

 private:
  Dispatched dispatch(bool is_again) {
    const bool is_stored = shape_.form == StressForm::kStored;
    const bool is_fp4 = shape_.form == StressForm::kStoredFp4;
    DispatchOptions options;
    float one = 1.0f;
    if (is_fp4) options.tensor_scale = TensorView(&one, DType::kF32, {1});
    if (is_stored || is_fp4) {
      options.scales = TensorView(scales_.data(), is_fp4 ? DType::kE4M3 : DType::kF32,
                                  {num_tokens_, shape_.num_scales()});
    }
    if (shape_.payload_words > 0) {
      options.payloads.emplace_back(
          payload_.data(), DType::kU8,
          std::initializer_list<std::int64_t>{num_tokens_, shape_.payload_words * 4});
    }
    const DType dtype = is_fp4 ? DType::kE2M1 : is_stored ? DType::kE4M3 : DType::kBF16;
    const TensorView tokens(tokens_.data(), dtype, {num_tokens_, shape_.hidden});
    const TensorView weights(weights_.data(), DType::kF32, {num_tokens_, shape_.num_topk});
    if (is_again) {
      return exchange_.dispatch_again(earlier_, tokens, weights, Stream::host(), options);
    }
    const Dispatched got = exchange_.dispatch(
        tokens, TensorView(ids_.data(), DType::kI32, {num_tokens_, shape_.num_topk}), weights,
        Stream::host(), options);
    if (shape_.capacity > 0) expect_dropped(got);
    return got;
  }

  void expect_dropped(const Dispatched& got) {
    int dropped = 0;
    for (int t = 0; t < num_tokens_; ++t) {
      for (int k = 0; k < shape_.num_topk; ++k) {
        if (stress_id(shape_, routing_.step, shape_.rank, t, k) < 0) continue;
        dropped += stress_kept_id(shape_, routing_, shape_.rank, t, k) < 0 ? 1 : 0;
      }
    }
    ASSERT_EQ(got.num_dropped.as<std::int32_t>()[0], dropped) << case_.name << " step " << step_;
    num_dropped_ += dropped;
  }

  void make_input() {
    const auto tokens = static_cast<std::size_t>(num_tokens_);
    const auto words = static_cast<std::size_t>(shape_.token_bytes() / 4);
    const auto topk = static_cast<std::size_t>(shape_.num_topk);
    const auto scales = static_cast<std::size_t>(shape_.num_scales());
    tokens_.assign(tokens * words * 4 + 1, std::byte{0});
    ids_.assign(tokens * topk * 4 + 1, std::byte{0});
    weights_.assign(tokens * topk * 4 + 1, std::byte{0});
    scales_.assign(tokens * scales * 4 + 1, std::byte{0});
    payload_.assign(tokens * static_cast<std::size_t>(shape_.payload_words) * 4 + 1, std::byte{0});
    const std::uint32_t key = step_key(shape_, step_, StressSalt::kWords);
    for (std::size_t t = 0; t < tokens; ++t) {
      const auto token = static_cast<int>(t);
      for (std::size_t w = 0; w < words; ++w) {
        put(tokens_, t * words + w,
            stress_word(shape_, key, step_, shape_.rank, token, static_cast<std::uint32_t>(w),
                        false));
      }
      for (std::size_t k = 0; k < topk; ++k) {
        const auto choice = static_cast<int>(k);
        put(ids_, t * topk + k, stress_id(shape_, routing_.step, shape_.rank, token, choice));
        put(weights_, t * topk + k, stress_weight(shape_, step_, shape_.rank, token, choice));
      }
      for (int w = 0; w < shape_.payload_words; ++w) {
        const auto word = static_cast<std::size_t>(w);
        put(payload_, t * static_cast<std::size_t>(shape_.payload_words) + word,
            stress_payload(shape_, step_, shape_.rank, token, static_cast<std::uint32_t>(w)));
      }
      for (std::size_t s = 0; s < scales; ++s) {
        const std::uint32_t scale =
            stress_scale(shape_, step_, shape_.rank, token, static_cast<int>(s));
        if (shape_.scale_bytes() == 4) {
          put(scales_, t * scales + s, scale);
        } else {
          put(scales_, t * scales + s, static_cast<std::uint8_t>(scale));
        }
      }
    }
  }

  void expect_row(const Dispatched& got, const RowOrigin& from) {
    const std::uint32_t key = step_key(shape_, step_, StressSalt::kWords);
    const std::int64_t words = shape_.row_bytes() / 4;
    for (std::int64_t w = 0; w < words; ++w) {
      ASSERT_EQ(get<std::uint32_t>(got.experts.rows, from.row * words + w),
                stress_word(shape_, key, step_, from.rank, static_cast<int>(from.token),
                            static_cast<std::uint32_t>(w), true))
          << case_.name << " step " << step_ << " row " << from.row << " word " << w;
    }
    for (int i = 0; i < shape_.num_scales(); ++i) {
      const std::int64_t at = from.row * shape_.num_scales() + i;
      const std::uint32_t scale = shape_.scale_bytes() == 4
                                      ? get<std::uint32_t>(got.experts.scales, at)
                                      : get<std::uint8_t>(got.experts.scales, at);
      ASSERT_EQ(scale, stress_scale(shape_, step_, from.rank, static_cast<int>(from.token), i))
          << case_.name;
    }
    for (int w = 0; w < shape_.payload_words; ++w) {
      ASSERT_EQ(get<std::uint32_t>(got.payloads[0], from.row * shape_.payload_words + w),
                stress_payload(shape_, step_, from.rank, static_cast<int>(from.token),
                               static_cast<std::uint32_t>(w)))
          << case_.name << " step " << step_;
    }
    for (int k = 0; k < shape_.num_topk; ++k) {
      if (!shape_.is_token_major() && k != from.k) continue;
      const std::int64_t at = shape_.is_token_major() ? from.row * shape_.num_topk + k : from.row;
      ASSERT_EQ(get<float>(got.topk_weights, at),
                stress_weight(shape_, step_, from.rank, static_cast<int>(from.token), k));
      if (!shape_.is_token_major()) continue;
      ASSERT_EQ(get<std::int32_t>(got.topk_ids, at),
                stress_row_id(shape_, routing_, from.rank, static_cast<int>(from.token), k));
    }
  }

  void combine(const DispatchHandle& handle, std::int64_t num_rows,
               const std::vector<RowOrigin>& origins, bool returns_weights) {
    const std::uint32_t key = step_key(shape_, step_, StressSalt::kResults);
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    const auto columns = static_cast<std::size_t>(shape_.is_token_major() ? shape_.num_topk : 1);
    std::vector<std::uint16_t> results(static_cast<std::size_t>(num_rows) * hidden);
    std::vector<std::uint32_t> row_weights(static_cast<std::size_t>(num_rows) * columns);
    for (const RowOrigin& from : origins) {
      const auto row = static_cast<std::size_t>(from.row);
      const int k = shape_.is_token_major() ? shape_.rank : static_cast<int>(from.k);
      for (std::size_t h = 0; h < hidden; ++h) {
        const std::uint32_t four = four_results(key, from.rank, static_cast<int>(from.token), k,
                                                static_cast<std::uint32_t>(h / 4));
        results[row * hidden + h] = static_cast<std::uint16_t>(
            bf16_of_whole(result_of(four, static_cast<std::uint32_t>(h))));
      }
      for (std::size_t i = 0; i < columns; ++i) {
        const int choice = shape_.is_token_major() ? static_cast<int>(i) : from.k;
        row_weights[row * columns + i] =
            stress_returned(shape_, step_, from.rank, from.token, choice);
      }
    }
    const auto topk = static_cast<std::size_t>(shape_.num_topk);
    std::vector<float> output(static_cast<std::size_t>(num_tokens_) * hidden, -1.0f);
    std::vector<std::uint32_t> returned(static_cast<std::size_t>(num_tokens_) * topk, ~0u);
    CombineOptions options;
    if (returns_weights) {
      options.row_weights = TensorView(row_weights.data(), DType::kF32,
                                       {num_rows, static_cast<std::int64_t>(columns)});
      options.returned_weights =
          TensorView(returned.data(), DType::kF32, {num_tokens_, shape_.num_topk});
    }
    exchange_.combine(handle, TensorView(results.data(), DType::kBF16, {num_rows, shape_.hidden}),
                      TensorView(output.data(), DType::kF32, {num_tokens_, shape_.hidden}),
                      Stream::host(), options);
    for (std::size_t i = 0; i < output.size(); ++i) {
      const auto token = static_cast<int>(i / hidden);
      ASSERT_EQ(output[i], static_cast<float>(wanted_sum(key, token, i % hidden)))
          << case_.name << " step " << step_ << " token " << token;
    }
    for (std::size_t i = 0; returns_weights && i < returned.size(); ++i) {
      const auto token = static_cast<int>(i / topk);
      const auto k = static_cast<int>(i % topk);
      const bool is_kept = stress_kept_id(shape_, routing_, shape_.rank, token, k) >= 0;
      ASSERT_EQ(returned[i], is_kept ? stress_returned(shape_, step_, shape_.rank, token, k) : 0u)
          << case_.name << " step " << step_ << " token " << token;
    }
  }

  int wanted_sum(std::uint32_t key, int token, std::size_t h) const {
    int sum = 0;
    std::uint32_t ranks = 0;
    for (int k = 0; k < shape_.num_topk; ++k) {
      const int id = stress_kept_id(shape_, routing_, shape_.rank, token, k);
      if (id < 0) continue;
      const int rank = id / shape_.num_local;
      if (shape_.is_token_major() && (ranks >> rank & 1) != 0) continue;
      ranks |= 1u << rank;
      const std::uint32_t four =
          four_results(key, shape_.rank, token, shape_.is_token_major() ? rank : k,
                       static_cast<std::uint32_t>(h / 4));
      const bool is_weighted = !shape_.is_token_major() && !is_unweighted_;
      const float weight = is_weighted ? stress_weight(shape_, step_, shape_.rank, token, k) : 1.0f;
      sum += static_cast<int>(weight) * result_of(four, static_cast<std::uint32_t>(h));
    }
    return sum;
  }

  const StressCase& case_;
  StressShape shape_;
  Exchange exchange_;
  std::uint32_t step_ = 0;
  StressRouting routing_;
  DispatchHandle earlier_;
  std::int64_t num_tokens_ = 0;
  int num_dropped_ = 0;
  bool is_unweighted_ = false;
  std::vector<std::byte> tokens_, ids_, weights_, scales_, payload_;
};

TEST(StressExchangeTest, TheRuleIsWhatTheCpuExchangeDoes) {
  std::vector<StressCase> cases = stress_cases(kNumRanks, 1, true);
  StressCase by_rank = cases.back();
  ASSERT_EQ(by_rank.shape.layout, Layout::kCompact);
  by_rank.shape.layout = Layout::kByRank;  // no stress case on GPUs uses it, but the rule covers it
  cases.push_back(by_rank);
  for (StressCase c : cases) {
    c.shape.max_tokens = 9;
    c.shape.hidden = 256;
    run_ranks(kNumRanks, [&](const Group& group) {
      RuleRank rank(group, c);
      for (std::uint32_t step = 0; step < kNumSteps; ++step) rank.step(step);
      if (c.shape.capacity > 0 && group.rank() == 0) {
        EXPECT_GT(rank.num_dropped(), 0) << c.name;
      }
    });
  }
}

}  // namespace
}  // namespace switchyard::test
