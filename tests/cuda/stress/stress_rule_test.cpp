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
    step_ = step;
    num_tokens_ = stress_tokens(shape_, step, shape_.rank);
    make_input();
    const bool is_stored = shape_.form == StressForm::kStored;
    const bool is_fp4 = shape_.form == StressForm::kStoredFp4;
    DispatchOptions options;
    float one = 1.0f;
    if (is_fp4) options.tensor_scale = TensorView(&one, DType::kF32, {1});
    if (is_stored || is_fp4) {
      options.scales = TensorView(scales_.data(), is_fp4 ? DType::kE4M3 : DType::kF32,
                                  {num_tokens_, shape_.num_scales()});
    }
    const DType dtype = is_fp4 ? DType::kE2M1 : is_stored ? DType::kE4M3 : DType::kBF16;
    const Dispatched got =
        exchange_.dispatch(TensorView(tokens_.data(), dtype, {num_tokens_, shape_.hidden}),
                           TensorView(ids_.data(), DType::kI32, {num_tokens_, shape_.num_topk}),
                           TensorView(weights_.data(), DType::kF32, {num_tokens_, shape_.num_topk}),
                           Stream::host(), options);
    const std::vector<RowOrigin> origins = exchange_.row_origins(got.handle);
    for (const RowOrigin& origin : origins) expect_row(got, origin);
    combine(got, origins);
  }

 private:
  void make_input() {
    const auto tokens = static_cast<std::size_t>(num_tokens_);
    const auto words = static_cast<std::size_t>(shape_.token_bytes() / 4);
    const auto topk = static_cast<std::size_t>(shape_.num_topk);
    const auto scales = static_cast<std::size_t>(shape_.num_scales());
    tokens_.assign(tokens * words * 4 + 1, std::byte{0});
    ids_.assign(tokens * topk * 4 + 1, std::byte{0});
    weights_.assign(tokens * topk * 4 + 1, std::byte{0});
    scales_.assign(tokens * scales * 4 + 1, std::byte{0});
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
        put(ids_, t * topk + k, stress_id(shape_, step_, shape_.rank, token, choice));
        put(weights_, t * topk + k, stress_weight(shape_, step_, shape_.rank, token, choice));
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
    for (int k = 0; k < shape_.num_topk; ++k) {
      if (!shape_.is_token_major() && k != from.k) continue;
      const std::int64_t at = shape_.is_token_major() ? from.row * shape_.num_topk + k : from.row;
      ASSERT_EQ(get<float>(got.topk_weights, at),
                stress_weight(shape_, step_, from.rank, static_cast<int>(from.token), k));
      if (!shape_.is_token_major()) continue;
      ASSERT_EQ(get<std::int32_t>(got.topk_ids, at),
                stress_row_id(shape_, step_, from.rank, static_cast<int>(from.token), k));
    }
  }

  void combine(const Dispatched& got, const std::vector<RowOrigin>& origins) {
    const std::uint32_t key = step_key(shape_, step_, StressSalt::kResults);
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    const std::int64_t num_rows = got.experts.rows.num_elements() / shape_.hidden;
    std::vector<std::uint16_t> results(static_cast<std::size_t>(num_rows) * hidden);
    for (const RowOrigin& from : origins) {
      const int k = shape_.is_token_major() ? shape_.rank : static_cast<int>(from.k);
      for (std::size_t h = 0; h < hidden; ++h) {
        const std::uint32_t four = four_results(key, from.rank, static_cast<int>(from.token), k,
                                                static_cast<std::uint32_t>(h / 4));
        results[static_cast<std::size_t>(from.row) * hidden + h] = static_cast<std::uint16_t>(
            bf16_of_whole(result_of(four, static_cast<std::uint32_t>(h))));
      }
    }
    std::vector<float> output(static_cast<std::size_t>(num_tokens_) * hidden, -1.0f);
    exchange_.combine(got.handle,
                      TensorView(results.data(), DType::kBF16, {num_rows, shape_.hidden}),
                      TensorView(output.data(), DType::kF32, {num_tokens_, shape_.hidden}));
    for (std::size_t i = 0; i < output.size(); ++i) {
      const auto token = static_cast<int>(i / hidden);
      ASSERT_EQ(output[i], static_cast<float>(wanted_sum(key, token, i % hidden)))
          << case_.name << " step " << step_ << " token " << token;
    }
  }

  int wanted_sum(std::uint32_t key, int token, std::size_t h) const {
    int sum = 0;
    std::uint32_t ranks = 0;
    for (int k = 0; k < shape_.num_topk; ++k) {
      const int id = stress_id(shape_, step_, shape_.rank, token, k);
      if (id < 0) continue;
      const int rank = id / shape_.num_local;
      if (shape_.is_token_major() && (ranks >> rank & 1) != 0) continue;
      ranks |= 1u << rank;
      const std::uint32_t four =
          four_results(key, shape_.rank, token, shape_.is_token_major() ? rank : k,
                       static_cast<std::uint32_t>(h / 4));
      const float weight =
          shape_.is_token_major() ? 1.0f : stress_weight(shape_, step_, shape_.rank, token, k);
      sum += static_cast<int>(weight) * result_of(four, static_cast<std::uint32_t>(h));
    }
    return sum;
  }

  const StressCase& case_;
  StressShape shape_;
  Exchange exchange_;
  std::uint32_t step_ = 0;
  std::int64_t num_tokens_ = 0;
  std::vector<std::byte> tokens_, ids_, weights_, scales_;
};

TEST(StressRuleTest, IsWhatTheCpuExchangeDoes) {
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
    });
  }
}

TEST(StressRuleTest, ReservedWordsComeAllTheTime) {
  StressShape s;
  std::int64_t reserved = 0;
  for (std::uint32_t w = 0; w < 4000; ++w) {
    const std::uint32_t word = stress_word(s, step_key(s, 1, StressSalt::kWords), 1, 0, 3, w, true);
    reserved += word >= 0xFFFFFFFEu ? 1 : 0;
  }
  EXPECT_GT(reserved, 200);
}

}  // namespace
}  // namespace switchyard::test
