// SPDX-License-Identifier: Apache-2.0
//
// Exchanges of three ranks (threads) and the oracle against combine.safetensors. Expert e returns
// its row times 2^(e % 3 - 1); where rows are of tokens, rank r returns them times 2^(r - 1).

#include <cmath>
#include <string>
#include <vector>

#include "switchyard/exchange.h"

#include "quant/bf16.h"
#include "reference/reference.h"
#include "support/elements.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using reference::Table;
using test::expect_bytes;
using test::Golden;

constexpr int kNumRanks = 3;
constexpr std::int32_t kNumExperts = 7;
constexpr std::int32_t kNumTopk = 4;
constexpr std::int64_t kHidden = 24;
constexpr std::int64_t kMaxTokens = 5;

struct Case {
  const char* name;
  Layout layout;
  Reduce reduce;
  bool is_weighted = false;
  bool has_bias = false;
};
constexpr Case kCases[] = {
    {"low_latency", Layout::kBatched, Reduce::kPerExpert, true},
    {"low_latency", Layout::kExpanded, Reduce::kPerExpert, true},
    {"expanded", Layout::kExpanded, Reduce::kPerRank},
    {"expanded", Layout::kBatched, Reduce::kPerRank},
    {"expanded_bias", Layout::kExpanded, Reduce::kPerRank, false, true},
    {"compact", Layout::kCompact, Reduce::kPerRank},
    {"compact", Layout::kByRank, Reduce::kPerRank},
    {"reduce_scatter", Layout::kAllGather, Reduce::kPerRank},
};

bool is_expert_major(const Case& test) {
  return test.layout == Layout::kBatched || test.layout == Layout::kExpanded;
}

float scaled(float x, std::int32_t number) {
  return reference::round_to(DType::kBF16, x * std::ldexp(1.0f, number % 3 - 1));
}

void scale_rows(const TensorView& from, std::int64_t first, std::int64_t count, std::int32_t number,
                const TensorView& to) {
  for (std::int64_t i = first * kHidden; i < (first + count) * kHidden; ++i) {
    to.as<std::uint16_t>()[i] =
        bf16_from_f32(scaled(f32_from_bf16(from.as<std::uint16_t>()[i]), number));
  }
}

void run_experts(const Case& test, const Dispatched& got, int rank, const TensorView& rows) {
  const ExpertRows& experts = got.experts;
  if (!is_expert_major(test)) {
    return scale_rows(experts.rows, 0, rows.num_elements() / kHidden, rank, rows);
  }
  const std::int32_t first = reference::first_expert(kNumExperts, kNumRanks, rank);
  for (std::int32_t e = 0; e < experts.num_rows.shape(0); ++e) {
    scale_rows(experts.rows, experts.first_row.as<std::int64_t>()[e],
               experts.num_rows.as<std::int32_t>()[e], first + e, rows);
  }
}

TEST(CombineGoldenTest, EveryLayoutGivesTheBytesOfTheOriginals) {
  const Golden golden("combine");
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.name);
    ExchangeConfig config;
    const bool has_routing = test.layout != Layout::kAllGather;
    config.num_experts = has_routing ? kNumExperts : 0;
    config.num_topk = has_routing ? kNumTopk : 0;
    config.hidden = kHidden;
    config.max_tokens_per_rank = kMaxTokens;
    config.layout = test.layout;
    config.reduce = test.reduce;
    config.sends_weights = test.is_weighted;
    test::run_ranks(kNumRanks, [&](const Group& group) {
      const Golden own("combine");
      const std::string path = std::to_string(group.rank()) + "/";
      const TensorView x = own(path + "x");
      const std::int64_t num_tokens = x.shape(0);
      Exchange exchange(group, config);
      const Dispatched got =
          exchange.dispatch(x, has_routing ? own(path + "ids") : TensorView{},
                            test.is_weighted ? own(path + "weights") : TensorView{});
      const Tensor rows = test::zeros_like(got.experts.rows);
      run_experts(test, got, group.rank(), rows);
      CombineOptions options;
      if (test.has_bias) {
        auto* biases = own(path + "biases").as<std::uint16_t>();
        for (const int i : {0, 1}) {
          options.bias.emplace_back(biases + i * num_tokens * kHidden, DType::kBF16,
                                    std::initializer_list<std::int64_t>{num_tokens, kHidden});
        }
      }
      const Tensor output(DType::kBF16, {num_tokens, kHidden});
      exchange.combine(got.handle, rows, output, Stream::host(), options);
      expect_bytes(path + test.name, output, own(path + test.name));
    });
    for (int rank = 0; rank < kNumRanks; ++rank) {
      const std::string path = std::to_string(rank) + "/";
      for (const char* name : {"x", "ids", "weights", "biases", test.name})
        (void)golden(path + name);
    }
  }
  golden.expect_all_taken();
}

Table<float> floats(const TensorView& x) {
  Table<float> values(x.shape(0), x.shape(1));
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    values.data[i] = f32_from_bf16(x.as<std::uint16_t>()[i]);
  }
  return values;
}

reference::Batch make_batch(const Golden& golden) {
  reference::Batch batch;
  batch.num_experts = kNumExperts;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const std::string path = std::to_string(rank) + "/";
    reference::RankInput input;
    input.tokens = floats(golden(path + "x"));
    const std::int64_t num_tokens = input.tokens.rows;
    const auto ids = test::elements<std::int32_t>(golden(path + "ids"));
    const auto weights = test::elements<float>(golden(path + "weights"));
    input.topk_ids = {num_tokens, kNumTopk, {ids.begin(), ids.end()}};
    input.topk_weights = {num_tokens, kNumTopk, {weights.begin(), weights.end()}};
    batch.ranks.push_back(std::move(input));
  }
  return batch;
}

void expect_rounded(const Table<float>& got, const TensorView& want) {
  const Tensor rows(DType::kBF16, {got.rows, kHidden});
  for (std::size_t i = 0; i < got.data.size(); ++i) {
    rows.as<std::uint16_t>()[i] = bf16_from_f32(got.data[i]);
  }
  expect_bytes("oracle", rows, want);
}

TEST(CombineGoldenTest, OracleGivesTheBytesOfTheOriginals) {
  const Golden golden("combine");
  const reference::Batch batch = make_batch(golden);
  std::vector<reference::ExpertMajor> placed;
  std::vector<Table<float>> outputs;
  std::vector<Table<float>> partials;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    placed.push_back(reference::dispatch_expanded(batch, rank, 1));
    Table<float> rows = reference::receive(batch, placed.back().rows, placed.back().num_rows);
    const std::int32_t first = reference::first_expert(kNumExperts, kNumRanks, rank);
    for (const reference::Position& row : placed.back().rows) {
      for (float& x : rows.row(row.index)) x = scaled(x, first + row.expert);
    }
    outputs.push_back(std::move(rows));
    partials.push_back(
        reference::reduce_on_rank(batch, rank, placed.back(), outputs.back(), false));
  }
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const std::string path = std::to_string(rank) + "/";
    expect_rounded(reference::combine_per_expert(batch, rank, placed, outputs, DType::kBF16),
                   golden(path + "low_latency"));
    expect_rounded(reference::sum_partials(batch, rank, partials, {}, DType::kBF16),
                   golden(path + "expanded"));
  }
}

}  // namespace
}  // namespace switchyard
