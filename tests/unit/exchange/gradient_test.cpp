// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine are each other's gradient. A layer whose experts multiply by small integers
// is linear in the tokens and in the weights, and f32 holds all its sums exactly, so the gradient
// must equal the difference quotient of the forward pass bit for bit.
//
//   forward   y = combine(w, factor[e] * dispatch(x));  loss = sum(g * y)
//   backward  g is dispatched with the kept routing; d_rows = w * factor * g returns through a
//             reopened or the same handle, with <row, factor * g> as the gradient of the weight

#include <vector>

#include <gtest/gtest.h>

#include "switchyard/exchange.h"

#include "core/random.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

constexpr int kNumRanks = 3;
constexpr int kNumExperts = 7;
constexpr std::int64_t kTopk = 3;
constexpr std::int64_t kHidden = 4;

float small_int(std::uint64_t seed, std::int64_t i) {
  return static_cast<float>(random_bits(seed, static_cast<std::uint64_t>(i)) % 7) - 3.0f;
}
float factor(int expert) { return static_cast<float>(expert % 4 - 1); }

struct Problem {
  std::int64_t num_tokens;
  std::vector<float> x;           // [T, H]
  std::vector<float> g;           // [T, H]
  std::vector<float> w;           // [T, K]
  std::vector<std::int32_t> ids;  // [T, K]

  explicit Problem(int rank) : num_tokens(5 * rank) {  // rank 0 has no tokens
    const auto seed = static_cast<std::uint64_t>(rank) * 10;
    for (std::int64_t i = 0; i < num_tokens * kHidden; ++i) {
      x.push_back(small_int(seed + 1, i));
      g.push_back(small_int(seed + 2, i));
    }
    for (std::int64_t i = 0; i < num_tokens * kTopk; ++i) {
      w.push_back(small_int(seed + 3, i));
      // Some ids are -1, and the experts of a token are distinct.
      const auto first =
          static_cast<int>(random_bits(seed + 4, static_cast<std::uint64_t>(i / kTopk)) % 8);
      const int id = (first + static_cast<int>(i % kTopk) * 3) % (kNumExperts + 1);
      ids.push_back(id == kNumExperts ? -1 : id);
    }
  }
  TensorView tokens(const std::vector<float>& values) const {
    return TensorView::of(values.data(), {num_tokens, kHidden});
  }
  TensorView topk_ids() const { return TensorView::of(ids.data(), {num_tokens, kTopk}); }
  TensorView weights() const { return TensorView::of(w.data(), {num_tokens, kTopk}); }
};

// The experts of one received row: (global expert, weight, place in the row weights).
struct Choice {
  int expert;
  float weight;
  std::int64_t place;
};
std::vector<std::vector<Choice>> choices_of(const Exchange& exchange, const Dispatched& got,
                                            int first_expert, int num_local) {
  std::vector<std::vector<Choice>> choices(
      static_cast<std::size_t>(got.experts.rows.num_elements() / kHidden));
  const bool is_compact = exchange.config().layout == Layout::kCompact;
  for (const RowOrigin& origin : exchange.row_origins(got.handle)) {
    auto& row = choices[static_cast<std::size_t>(origin.row)];
    if (origin.expert >= 0) {
      row.push_back({first_expert + origin.expert, origin.weight, origin.row});
      continue;
    }
    for (std::int64_t k = 0; k < kTopk; ++k) {
      const std::int64_t at = origin.row * kTopk + k;
      const int id = got.topk_ids.as<std::int32_t>()[at];
      const int expert = is_compact && id >= 0 ? first_expert + id : id;
      if (expert < first_expert || expert >= first_expert + num_local) continue;
      row.push_back({expert, got.topk_weights.as<float>()[at], at});
    }
  }
  return choices;
}

// Returns, per row, the sum over its experts of weight * factor * from. Expert-major rows are
// weighted by the library in the forward pass.
Tensor apply(const TensorView& from, const std::vector<std::vector<Choice>>& choices, bool weighs) {
  Tensor to(DType::kF32, {from.num_elements() / kHidden, kHidden});
  for (std::size_t row = 0; row < choices.size(); ++row) {
    for (const Choice& choice : choices[row]) {
      for (std::size_t h = row * kHidden; h < (row + 1) * kHidden; ++h) {
        to.as<float>()[h] +=
            (weighs ? choice.weight : 1.0f) * factor(choice.expert) * from.as<float>()[h];
      }
    }
  }
  return to;
}

class GradientTest {
 public:
  GradientTest(const Group& group, Layout layout, Reduce reduce)
      : rank_(group.rank()), problem_(group.rank()), exchange_(group, config(layout, reduce)) {
    for (int r = 0; r < rank_; ++r) first_ += num_local(r);
  }

  // Returns the output for tokens and weights of this rank that may differ from the problem's.
  std::vector<float> forward(const Problem& problem) {
    const Dispatched got =
        exchange_.dispatch(problem.tokens(problem.x), problem.topk_ids(), problem.weights());
    const auto choices = choices_of(exchange_, got, first_, num_local(rank_));
    const bool is_major = is_expert_major(exchange_.config().layout);
    const Tensor rows = apply(got.experts.rows, choices, !is_major);
    const Tensor output(DType::kF32, {problem.num_tokens, kHidden});
    exchange_.combine(got.handle, rows, output);
    kept_ = got.handle;
    kept_choices_ = choices;
    // Keep the inputs of the backward pass, as a training engine does.
    const float* data = got.experts.rows.as<float>();
    kept_rows_.assign(data, data + got.experts.rows.num_elements());
    return {output.as<float>(), output.as<float>() + problem.num_tokens * kHidden};
  }

  struct Gradient {
    Tensor tokens;   // [T, H]
    Tensor weights;  // [T, K]
  };
  Gradient backward(bool reopens) {
    const bool is_major = is_expert_major(exchange_.config().layout);
    const Dispatched got = exchange_.dispatch_again(kept_, problem_.tokens(problem_.g));
    const Tensor d_rows = apply(got.experts.rows, kept_choices_, true);
    const std::int64_t num_rows = got.experts.rows.num_elements() / kHidden;
    const Tensor d_weights(DType::kF32, {num_rows, is_major ? 1 : kTopk});
    for (std::size_t row = 0; row < kept_choices_.size(); ++row) {
      for (const Choice& choice : kept_choices_[row]) {
        for (std::size_t h = row * kHidden; h < (row + 1) * kHidden; ++h) {
          d_weights.as<float>()[choice.place] +=
              factor(choice.expert) * kept_rows_[h] * got.experts.rows.as<float>()[h];
        }
      }
    }
    DispatchHandle way_back = got.handle;
    if (reopens) {
      exchange_.release(got.handle);
      way_back = exchange_.reopen(kept_);
    }
    Gradient gradient{Tensor(DType::kF32, {problem_.num_tokens, kHidden}),
                      Tensor(DType::kF32, {problem_.num_tokens, kTopk})};
    CombineOptions options;
    options.row_weights = d_weights;
    options.returned_weights = gradient.weights;
    exchange_.combine(way_back, d_rows, gradient.tokens, Stream::host(), options);
    return gradient;
  }

  const Problem& problem() const { return problem_; }

 private:
  static ExchangeConfig config(Layout layout, Reduce reduce) {
    ExchangeConfig config;
    config.num_experts = kNumExperts;
    config.num_topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens_per_rank = 5 * kNumRanks;
    config.layout = layout;
    config.reduce = reduce;
    config.scheme.dtype = DType::kF32;
    config.combine_scheme.dtype = DType::kF32;
    return config;
  }
  static int num_local(int rank) {
    return kNumExperts / kNumRanks + (rank < kNumExperts % kNumRanks ? 1 : 0);
  }

  int rank_;
  int first_ = 0;
  Problem problem_;
  Exchange exchange_;
  DispatchHandle kept_;
  std::vector<std::vector<Choice>> kept_choices_;
  std::vector<float> kept_rows_;
};

double loss(const Problem& problem, const std::vector<float>& output) {
  double sum = 0.0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    sum += static_cast<double>(problem.g[i]) * static_cast<double>(output[i]);
  }
  return sum;
}

// Increments each element of x and w in turn, on all ranks at once: a token's loss depends on its
// own inputs only. Ranks have different numbers of elements; all run the largest number.
void check_gradients(const Group& group, Layout layout, Reduce reduce) {
  GradientTest test(group, layout, reduce);
  const Problem& problem = test.problem();
  const double at = loss(problem, test.forward(problem));
  for (const bool reopens : {false, true}) {
    const GradientTest::Gradient gradient = test.backward(reopens);
    constexpr std::size_t kMax = 5 * (kNumRanks - 1) * kHidden;
    for (std::size_t i = 0; i < kMax; i += reopens ? 7 : 1) {
      Problem moved = problem;
      if (i < moved.x.size()) moved.x[i] += 1.0f;
      const double by_token = loss(problem, test.forward(moved)) - at;
      if (i < moved.x.size()) {
        ASSERT_EQ(static_cast<double>(gradient.tokens.as<float>()[i]), by_token)
            << "token element " << i << " rank " << group.rank();
      }
      moved = problem;
      if (i < moved.w.size()) moved.w[i] += 1.0f;
      const double by_weight = loss(problem, test.forward(moved)) - at;
      if (i < moved.w.size()) {
        ASSERT_EQ(static_cast<double>(gradient.weights.as<float>()[i]), by_weight)
            << "weight " << i << " rank " << group.rank();
      }
    }
    test.forward(problem);
  }
}

TEST(ExchangeGradientTest, EqualsTheDifferenceQuotient) {
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                              Layout::kByRank, Layout::kAllGather}) {
    for (const Reduce reduce : {Reduce::kPerRank, Reduce::kPerExpert}) {
      if (reduce == Reduce::kPerExpert && !is_expert_major(layout)) continue;
      SCOPED_TRACE(name_of(layout));
      ASSERT_NO_THROW(test::run_ranks(
          kNumRanks, [&](const Group& group) { check_gradients(group, layout, reduce); }));
    }
  }
}

}  // namespace
}  // namespace switchyard
