// SPDX-License-Identifier: Apache-2.0
//
// The classes that leave tokens in their order: without an exchange, and where every rank has a
// slice of every expert. Whole layers are compared with the oracle in instruments/conformance.

#include <array>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/prepare_finalize_factory.h"
#include "switchyard/scale_layout.h"

#include "prepare_finalize_case.h"
#include "quant/bf16.h"
#include "support/elements.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::CallInput;
using test::ClassCase;
using test::expect_error;
using test::run_ranks;
using ::testing::Each;
using ::testing::ElementsAre;

template <typename T>
std::vector<T> values_of(const TensorView& view) {
  return {view.as<T>(), view.as<T>() + view.num_elements()};
}

std::vector<float> floats_of(const TensorView& rows) {
  std::vector<float> values;
  for (const std::uint16_t bits : values_of<std::uint16_t>(rows)) {
    values.push_back(f32_from_bf16(bits));
  }
  return values;
}

Tensor rows_of(std::int64_t num_rows, std::int64_t width, const std::vector<float>& of_row) {
  Tensor rows(DType::kBF16, {num_rows, width});
  for (std::int64_t i = 0; i < num_rows * width; ++i) {
    rows.as<std::uint16_t>()[i] = bf16_from_f32(of_row[static_cast<std::size_t>(i / width)]);
  }
  return rows;
}

PrepareFinalizeConfig small_config() {
  PrepareFinalizeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = 2;
  config.max_tokens_per_rank = 5;
  return config;
}

// Three tokens, the second without an expert.
struct ThreeTokens {
  Tensor hidden = rows_of(3, 2, {1.0f, 2.0f, 3.0f});
  std::array<std::int64_t, 6> ids{3, 0, -1, -1, 1, 3};
  std::array<float, 6> weights{0.5f, 0.25f, 0.125f, 1.0f, 2.0f, 4.0f};

  PrepareArguments arguments() const {
    return {hidden, TensorView::of(ids.data(), {3, 2}), TensorView::of(weights.data(), {3, 2})};
  }
};

TEST(TokenOrderTest, LocalHandsOutTokensIdsAndWeightsAsTheyAre) {
  const auto local = make_local(small_config());
  const ThreeTokens in;
  const Prepared prepared = local->prepare(in.arguments());
  EXPECT_THAT(floats_of(prepared.experts.rows), ElementsAre(1, 1, 2, 2, 3, 3));
  EXPECT_FALSE(prepared.experts.first_row.has_value());
  EXPECT_THAT(values_of<std::int32_t>(prepared.topk_ids), ElementsAre(3, 0, -1, -1, 1, 3));
  EXPECT_THAT(values_of<float>(prepared.topk_weights), ElementsAre(0.5f, 0.25f, 0.125f, 1, 2, 4));
  EXPECT_THAT(values_of<std::int32_t>(prepared.experts.num_rows), ElementsAre(1, 1, 0, 2));
  EXPECT_EQ(*prepared.total_rows.as<std::int32_t>(), 3);
  // Rows that are summed are copied, also that of a token without an expert.
  const Tensor output(DType::kBF16, {3, 2});
  local->finalize({output, rows_of(3, 2, {5, 6, 7}), WeightAndReduce::no_op()});
  EXPECT_THAT(floats_of(output), ElementsAre(5, 5, 6, 6, 7, 7));
  // Rows of choices are weighed and summed.
  local->prepare(in.arguments());
  Tensor choices = rows_of(6, 2, {2, 4, 100, 100, 1, 3});
  local->finalize({output, TensorView(choices.data(), DType::kBF16, {3, 2, 2})});
  EXPECT_THAT(floats_of(output), ElementsAre(2, 2, 0, 0, 14, 14));
}

TEST(TokenOrderTest, LocalTakesAnyNumberOfTokens) {
  ClassCase test{.kind = PrepareKind::kLocal, .num_tokens = {0, 1, 6}, .scheme = schemes::kNone};
  const reference::Batch batch = test::random_batch_of(test);
  const auto local = make_local(test.config());
  for (const reference::RankInput& tokens : batch.ranks) {
    const CallInput input(tokens);
    const Prepared prepared = local->prepare(input.arguments());
    EXPECT_EQ(prepared.experts.rows.shape(0), tokens.num_tokens());
    EXPECT_EQ(std::memcmp(prepared.experts.rows.data(), input.hidden.data(),
                          input.hidden.view().num_bytes()),
              0);
    const Tensor output = test::zeros_like(input.hidden);
    local->finalize({output, prepared.experts.rows, WeightAndReduce::no_op()});
    EXPECT_EQ(std::memcmp(output.data(), input.hidden.data(), input.hidden.view().num_bytes()), 0);
  }
}

TEST(TokenOrderTest, LocalScalesAreThoseOfTheTokensInTiles) {
  ClassCase test{.kind = PrepareKind::kLocal, .num_tokens = {131}, .max_tokens_per_rank = 140};
  test.hidden = 80;
  PrepareFinalizeConfig config = test.config();
  config.scheme = schemes::kNvfp4;
  config.static_scale = 300.0f;
  config.scale_layout = ScaleLayout::kSwizzled;
  const CallInput input(test::random_batch_of(test).ranks.front());
  const auto local = make_local(config);
  const Prepared prepared = local->prepare(input.arguments());
  const Tensor codes(DType::kE2M1, {131, 80});
  const Tensor scales(DType::kE4M3, {131, 5});
  quantize(input.hidden, config.scheme, codes, scales, Stream::host(),
           TensorView::of(&*config.static_scale, {1}));
  const Tensor tiles = swizzle_scales(scales);
  ASSERT_EQ(prepared.experts.scales.num_bytes(), tiles.view().num_bytes());
  EXPECT_EQ(std::memcmp(prepared.experts.scales.data(), tiles.data(), tiles.view().num_bytes()), 0);
  ASSERT_EQ(prepared.experts.rows.num_bytes(), codes.view().num_bytes());
  EXPECT_EQ(std::memcmp(prepared.experts.rows.data(), codes.data(), codes.view().num_bytes()), 0);
}

// Ids stay global; what is not here is in the map, and no sum takes it.
TEST(TokenOrderTest, LocalMayHoldSomeOfTheExperts) {
  PrepareFinalizeConfig config = small_config();
  config.num_experts = 5;
  config.ep_size = 2;
  config.ep_rank = 1;
  const auto local = make_local(config);
  EXPECT_EQ(local->num_local_experts(), 2);
  EXPECT_THAT(values_of<std::int32_t>(local->expert_map()), ElementsAre(-1, -1, -1, 0, 1, -1));
  const ThreeTokens in;
  const Prepared prepared = local->prepare(in.arguments());
  EXPECT_THAT(values_of<std::int32_t>(prepared.topk_ids), ElementsAre(3, 0, -1, -1, 1, 3));
  EXPECT_THAT(values_of<std::int32_t>(prepared.experts.num_rows), ElementsAre(2, 0));
  EXPECT_THAT(prepared.host->rows_per_expert, ElementsAre(2, 0));
  const Tensor output(DType::kBF16, {3, 2});
  const Tensor choices = rows_of(6, 2, {2, 4, 100, 100, 1, 3});
  local->finalize({output, TensorView(choices.data(), DType::kBF16, {3, 2, 2})});
  EXPECT_THAT(floats_of(output), ElementsAre(1, 1, 0, 0, 12, 12));
  config.ep_rank = 2;
  expect_error(Errc::kInvalidArgument, "ep_rank is 2 and ep_size 2", [&] { make_local(config); });
}

// More ranks than choices. f32 keeps the last ranks' 1, which bf16 steps would lose.
TEST(TokenOrderTest, EveryRankOfSlicesAddsToEveryToken) {
  constexpr std::array<float, 5> kOfRank{256, 1, 1, 1, 1};
  PrepareFinalizeConfig config = small_config();
  config.slices_experts = true;
  run_ranks(5, [&](const Group& group) {
    const auto object = make_prepare_finalize(PrepareKind::kAllGather, group, config);
    EXPECT_EQ(object->num_local_experts(), 4);
    EXPECT_FALSE(object->output_is_reduced());
    EXPECT_THAT(values_of<std::int32_t>(object->expert_map()), ElementsAre(0, 1, 2, 3, -1));
    const ThreeTokens in;
    PrepareArguments arguments = in.arguments();
    if (group.rank() % 2 == 1) {  // these have one token, the last
      arguments.hidden = TensorView(in.hidden.as<std::uint16_t>() + 4, DType::kBF16, {1, 2});
      arguments.topk_ids = TensorView::of(in.ids.data() + 4, {1, 2});
      arguments.topk_weights = TensorView::of(in.weights.data() + 4, {1, 2});
    }
    const Prepared prepared = object->prepare(arguments);
    EXPECT_THAT(floats_of(prepared.experts.rows),
                ElementsAre(1, 1, 2, 2, 3, 3, 3, 3, 1, 1, 2, 2, 3, 3, 3, 3, 1, 1, 2, 2, 3, 3));
    EXPECT_THAT(
        values_of<std::int32_t>(prepared.topk_ids),
        ElementsAre(3, 0, -1, -1, 1, 3, 1, 3, 3, 0, -1, -1, 1, 3, 1, 3, 3, 0, -1, -1, 1, 3));
    EXPECT_THAT(values_of<std::int32_t>(prepared.experts.num_rows), ElementsAre(3, 5, 0, 8));
    const float own = kOfRank[static_cast<std::size_t>(group.rank())];
    const Tensor output(DType::kBF16, {arguments.hidden.shape(0), 2});
    object->finalize(
        {output, rows_of(11, 2, std::vector<float>(11, own)), WeightAndReduce::no_op()});
    EXPECT_THAT(floats_of(output), Each(260.0f));
  });
}

TEST(TokenOrderTest, SlicesAreOfAllGatherAlone) {
  PrepareFinalizeConfig config = small_config();
  config.slices_experts = true;
  expect_error(Errc::kInvalidArgument, "slices_experts is set for low_latency",
               [&] { prepare_finalize_memory(PrepareKind::kLowLatency, config, 2, 0); });
  ExchangeConfig exchange{.num_experts = 4, .num_topk = 2, .hidden = 2, .max_tokens_per_rank = 3};
  exchange.slices_experts = true;
  expect_error(Errc::kInvalidArgument, "slices_experts is set for layout expanded",
               [&] { exchange_memory(exchange, 2, 0); });
  exchange.layout = Layout::kAllGather;
  run_ranks(2, [&](const Group& group) {
    Exchange slices(group, exchange);
    const ThreeTokens in;
    const PrepareArguments arguments = in.arguments();
    const Dispatched got =
        slices.dispatch(arguments.hidden, arguments.topk_ids, arguments.topk_weights);
    const Tensor output(DType::kBF16, {3, 2});
    CombineOptions options;
    options.row_weights = got.topk_weights;
    expect_error(
        Errc::kInvalidArgument, "experts are sliced and every rank serves every choice",
        [&] { slices.combine(got.handle, got.experts.rows, output, Stream::host(), options); });
    slices.combine(got.handle, got.experts.rows, output);
    EXPECT_THAT(floats_of(output), ElementsAre(2, 2, 4, 4, 6, 6));
    ExchangeConfig other = exchange;
    other.slices_experts = group.rank() == 0;
    expect_error(Errc::kInvalidArgument, "slices_experts", [&] { Exchange(group, other); });
  });
}

// Two data-parallel ranks of two tensor-parallel ranks each.
MoEConfig two_by_two(int dp_rank, int tp_rank, bool has_expert_parallel) {
  MoEConfig moe;
  moe.num_experts = 4;
  moe.num_topk = 2;
  moe.hidden = 2;
  moe.max_num_tokens = 3;
  moe.parallel = ParallelConfig::make({.tp_size = 2,
                                       .tp_rank = tp_rank,
                                       .dp_size = 2,
                                       .dp_rank = dp_rank,
                                       .enable_expert_parallel = has_expert_parallel,
                                       .all2all_backend = All2AllBackend::kAllGatherReduceScatter});
  return moe;
}

// Finalize adds the data-parallel ranks.
TEST(TokenOrderTest, TheGroupOfSlicesIsTheDataParallelOne) {
  run_ranks(4, [](const Group& group) {
    const int dp_rank = group.rank() / 2;
    const int tp_rank = group.rank() % 2;
    const MoEConfig moe = two_by_two(dp_rank, tp_rank, false);
    const PrepareFinalizeChoice choice = choose_prepare_finalize(moe, {});
    EXPECT_EQ(choice.kind, PrepareKind::kAllGather);
    EXPECT_TRUE(choice.config.slices_experts);
    expect_error(Errc::kInvalidArgument, "pass the data-parallel group",
                 [&] { (void)make_prepare_finalize(group, moe, {}); });
    const Group data_parallel = group.split(tp_rank, dp_rank);
    const auto object = make_prepare_finalize(data_parallel, moe, {});
    const ThreeTokens in;
    const Prepared prepared = object->prepare(in.arguments());
    EXPECT_EQ(prepared.experts.rows.shape(0), 6);
    const Tensor output(DType::kBF16, {3, 2});
    const auto own = static_cast<float>(1 << group.rank());
    object->finalize({output, rows_of(6, 2, std::vector<float>(6, own)), WeightAndReduce::no_op()});
    EXPECT_THAT(floats_of(output), Each(tp_rank == 0 ? 1.0f + 4.0f : 2.0f + 8.0f));
  });
}

// The same with an expert on each of the four ranks: the two of a tensor-parallel rank add up what
// their experts have.
TEST(TokenOrderTest, RanksOfTheDataParallelGroupMayHoldWholeExperts) {
  run_ranks(4, [](const Group& group) {
    const int dp_rank = group.rank() / 2;
    const int tp_rank = group.rank() % 2;
    const MoEConfig moe = two_by_two(dp_rank, tp_rank, true);
    const auto of_all = make_prepare_finalize(group, moe, {});
    EXPECT_EQ(of_all->prepare(ThreeTokens().arguments()).experts.rows.shape(0), 12);
    const Group data_parallel = group.split(tp_rank, dp_rank);
    const auto object = make_prepare_finalize(data_parallel, moe, {});
    EXPECT_EQ(object->num_local_experts(), 1);
    const std::int32_t expert = moe.ep_rank();
    const auto map = values_of<std::int32_t>(object->expert_map());
    for (std::int32_t e = 0; e < 4; ++e) {
      EXPECT_EQ(map[static_cast<std::size_t>(e)], e == expert ? 0 : -1);
    }
    const ThreeTokens in;
    const Prepared prepared = object->prepare(in.arguments());
    EXPECT_THAT(values_of<std::int32_t>(prepared.topk_ids),
                ElementsAre(3, 0, -1, -1, 1, 3, 3, 0, -1, -1, 1, 3));
    constexpr std::array<int, 4> kRowsOf{2, 2, 0, 4};
    EXPECT_THAT(values_of<std::int32_t>(prepared.experts.num_rows),
                ElementsAre(kRowsOf[static_cast<std::size_t>(expert)]));
    const Tensor output(DType::kBF16, {3, 2});
    const Tensor choices = rows_of(12, 2, {4, 1, 9, 9, 2, 4, 4, 1, 9, 9, 2, 4});  // id + 1
    object->finalize({output, TensorView(choices.data(), DType::kBF16, {6, 2, 2})});
    if (tp_rank == 0) {  // experts 0 and 2
      EXPECT_THAT(floats_of(output), ElementsAre(0.25f, 0.25f, 0, 0, 0, 0));
    } else {  // 1 and 3
      EXPECT_THAT(floats_of(output), ElementsAre(2, 2, 0, 0, 20, 20));
    }
  });
}

}  // namespace
}  // namespace switchyard
