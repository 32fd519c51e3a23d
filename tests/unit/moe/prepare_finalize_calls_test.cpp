// SPDX-License-Identifier: Apache-2.0
//
// What a call may vary, for every class: placements, sizes, sums, batches, weights on the input,
// rows that the experts quantize, and two calls at once.

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/expert_placement.h"
#include "switchyard/modular_kernel.h"

#include "prepare_finalize_case.h"
#include "quant/bf16.h"
#include "reference/batched.h"
#include "support/elements.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::CallInput;
using test::check_class;
using test::ClassCase;
using test::expect_error;
using test::kAllClasses;
using test::run_ranks;

class QuantizingExperts final : public Experts {
 public:
  std::string_view name() const override { return "quantizing"; }
  bool is_batch_invariant() const override { return true; }
  bool expects_unquantized_inputs() const override { return true; }
  std::size_t workspace_bytes(const TensorView&) const override { return 0; }
  void apply(const ExpertRows&, const TensorView&, std::span<std::byte>, Stream) override {}
};

void check_every_class(ClassCase test) {
  for (const PrepareKind kind : kAllClasses) {
    test.kind = kind;
    check_class(test);
  }
}

// Expert g is on rank g % P: 8 experts over 2 ranks, and 9 over 4 that hold 3, 2, 2 and 2.
TEST(PrepareFinalizeCallsTest, IdsOfAnotherPlacementAreMappedBothWays) {
  check_every_class({.num_tokens = {4, 3},
                     .num_experts = 8,
                     .scheme = schemes::kFp8Block,
                     .global_to_physical = {0, 4, 1, 5, 2, 6, 3, 7}});
  check_every_class({.num_tokens = {4, 3, 0, 6},
                     .num_experts = 9,
                     .global_to_physical = {0, 3, 5, 7, 1, 4, 6, 8, 2}});
}

TEST(PrepareFinalizeCallsTest, ShapesAtTheEdge) {
  check_every_class({.num_tokens = {0, 0}});
  check_every_class({.num_tokens = {3}, .hidden = 2});
  check_every_class({.num_tokens = {3, 2, 1, 5}, .num_experts = 2, .num_topk = 2});
  check_every_class({.num_tokens = {6, 6}, .num_topk = 1, .scheme = schemes::kFp8Token});
  check_every_class({.num_tokens = {4, 2}, .none_share = 1.1, .scheme = schemes::kFp8Tensor});
}

// A group of one rank quantizes every token, with scales in the layout of tensor cores.
TEST(PrepareFinalizeCallsTest, OneRankQuantizesInPlaceOfAnExchange) {
  check_every_class({.num_tokens = {5},
                     .none_share = 0.0,
                     .scheme = schemes::kNvfp4,
                     .static_scale = 600.0f,
                     .scale_layout = ScaleLayout::kSwizzled});
}

TEST(PrepareFinalizeCallsTest, SizesFollowTheCall) {
  for (const std::int64_t max_tokens : {5, 6, 11}) {
    check_every_class(
        {.max_tokens_per_rank = 11, .scheme = schemes::kFp8Block, .max_tokens = max_tokens});
  }
}

TEST(PrepareFinalizeCallsTest, DeferredRowsArriveAsTheyWere) {
  check_every_class({.scheme = schemes::kFp8Block, .defers = true});
  check_every_class({.scheme = schemes::kFp8Tensor, .defers = true});
  check_every_class({.scheme = schemes::kNvfp4,
                     .wire_scheme = schemes::kNone,
                     .static_scale = 600.0f,
                     .defers = true});
}

// The second exchange is taken by the constructor, or by post_init_setup for experts that want it.
TEST(PrepareFinalizeCallsTest, DeferredRowsNeedAnExchangeOfTheirOwn) {
  for (const PrepareKind kind : kAllClasses) {
    const ClassCase test{.kind = kind, .num_tokens = {5, 2}, .scheme = schemes::kFp8Block};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(2, [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, test.config());
      const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())], DType::kBF16);
      PrepareArguments deferred = input.arguments();
      deferred.defer_input_quant = true;
      expect_error(Errc::kInvalidArgument, "set PrepareFinalizeConfig::defers_input_quant",
                   [&] { object->prepare(deferred); });
      EXPECT_EQ(object->row_scheme(false), schemes::kFp8Block);
      EXPECT_EQ(object->row_scheme(true), schemes::kNone);
      const ExchangeMemory before = object->memory();
      object->post_init_setup(QuantizingExperts());
      EXPECT_GT(object->memory().window_bytes, before.window_bytes);
      for (const bool defers : {true, false}) {
        PrepareArguments arguments = input.arguments();
        arguments.defer_input_quant = defers;
        const Prepared prepared = object->prepare(arguments);
        EXPECT_EQ(prepared.experts.scheme, defers ? schemes::kNone : schemes::kFp8Block);
        const Tensor rows = test::zeros_like(prepared.experts.rows);
        object->finalize({input.hidden, rows, WeightAndReduce::no_op()});
      }
    });
  }
}

TEST(PrepareFinalizeCallsTest, PrefillStartsExpertsAtTheAlignment) {
  for (const std::int64_t alignment : {2, 3, 16}) {
    for (const Reduce reduce : {Reduce::kPerRank, Reduce::kPerExpert}) {
      check_class({.kind = PrepareKind::kElasticPrefill,
                   .scheme = schemes::kFp8Block,
                   .scale_layout = ScaleLayout::kColumnMajorAligned,
                   .reduce = reduce,
                   .expert_alignment = alignment});
    }
  }
}

TEST(PrepareFinalizeCallsTest, BatchedAndLocalRowsCanBeSummedPerRank) {
  check_class({.kind = PrepareKind::kLowLatency, .reduce = Reduce::kPerRank});
  check_class({.kind = PrepareKind::kLocal, .reduce = Reduce::kPerRank});
}

// Column-major scales of a batch: [L, C, S] with the strides of DeepEP's low-latency dispatch.
TEST(PrepareFinalizeCallsTest, BatchedScalesHaveTheStridesOfTheirLayout) {
  PrepareFinalizeConfig config = ClassCase{}.config();
  config.hidden = 384;
  config.max_tokens_per_rank = 3;
  config.scheme = schemes::kFp8BlockDeepEp;
  for (const bool is_aligned : {false, true}) {
    config.scale_layout = is_aligned ? ScaleLayout::kColumnMajorAligned : ScaleLayout::kColumnMajor;
    run_ranks(2, [&](const Group& group) {
      const auto object = make_low_latency(group, config);
      const Tensor hidden(DType::kBF16, {1, 384});
      const Tensor ids(DType::kI32, {1, 3});
      for (int k = 0; k < 3; ++k) ids.as<std::int32_t>()[k] = k;
      const Prepared prepared = object->prepare({hidden, ids, Tensor(DType::kF32, {1, 3})});
      const TensorView& scales = prepared.experts.scales;
      const std::int64_t column = is_aligned ? 8 : 6;  // C = 2 ranks x 3 tokens
      EXPECT_EQ(scales.shape(0), object->num_local_experts());
      EXPECT_EQ(scales.shape(1), 6);
      EXPECT_EQ(scales.shape(2), 3);
      EXPECT_EQ(scales.stride(0), 3 * column);
      EXPECT_EQ(scales.stride(1), 1);
      EXPECT_EQ(scales.stride(2), column);
      object->finalize({hidden, test::zeros_like(prepared.experts.rows)});
    });
  }
}

// With the flag, weights apply to the rows; without it, pre-multiplied rows have weights of 1.
TEST(PrepareFinalizeCallsTest, WeightsOnTheInputEqualWeightedRows) {
  for (const PrepareKind kind : kAllClasses) {
    const ClassCase test{.kind = kind, .num_topk = 1};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(test.num_ranks(), [&](const Group& group) {
      const auto r = static_cast<std::size_t>(group.rank());
      const std::int32_t first =
          test.is_local() ? 0 : reference::first_expert(7, group.size(), group.rank());
      ModularKernel kernel(make_prepare_finalize(kind, group, test.config()),
                           test::make_scaling_experts(first));
      reference::RankInput weighted = batch.ranks[r];
      for (std::int64_t t = 0; t < weighted.tokens.rows; ++t) {
        for (float& x : weighted.tokens.row(t)) {
          x = reference::weigh_input(DType::kBF16, x, weighted.topk_weights(t, 0));
        }
        weighted.topk_weights(t, 0) = 1.0f;
      }
      const CallInput plain(weighted, DType::kBF16);
      const Tensor want(DType::kBF16, {weighted.tokens.rows, test.hidden});
      kernel.apply(plain.arguments(), want);
      for (const bool in_place : {false, true}) {
        const CallInput input(batch.ranks[r], DType::kBF16);
        const CallInput copy(batch.ranks[r], DType::kBF16);
        PrepareArguments arguments = input.arguments();
        arguments.apply_router_weight_on_input = true;
        arguments.weighs_in_place = in_place;
        const Tensor got(DType::kBF16, {weighted.tokens.rows, test.hidden});
        kernel.apply(arguments, got);
        EXPECT_EQ(std::memcmp(got.data(), want.data(), want.view().num_bytes()), 0)
            << name_of(kind);
        EXPECT_EQ(std::memcmp(input.hidden.data(), (in_place ? plain : copy).hidden.data(),
                              input.hidden.view().num_bytes()),
                  0);
      }
    });
  }
}

// Two calls at once with interleaved halves; there is no micro-batch for a third.
TEST(PrepareFinalizeCallsTest, TwoMicroBatchesAreIndependent) {
  for (const PrepareKind kind : kAllClasses) {
    ClassCase test{.kind = kind, .num_topk = 1, .none_share = 0.0};
    PrepareFinalizeConfig config = test.config();
    config.num_micro_batches = 2;
    // Arriving rows are converted once more, so each call needs memory of its own for them.
    config.wire_scheme = QuantScheme{DType::kF32};
    const reference::Batch first = test::random_batch_of(test);
    test.seed = 2;
    const reference::Batch second = test::random_batch_of(test);
    run_ranks(test.num_ranks(), [&](const Group& group) {
      const auto r = static_cast<std::size_t>(group.rank());
      const auto object = make_prepare_finalize(kind, group, config);
      std::vector<CallInput> inputs;
      std::vector<Tensor> outputs;
      for (const reference::Batch* batch : {&first, &second}) {
        reference::RankInput input = batch->ranks[r];
        for (float& w : input.topk_weights.data) w = 1.0f;
        inputs.emplace_back(input, DType::kBF16);
        outputs.emplace_back(DType::kBF16,
                             std::initializer_list<std::int64_t>{input.tokens.rows, test.hidden});
      }
      const auto arguments = [&](int m) {
        PrepareArguments result = inputs[static_cast<std::size_t>(m % 2)].arguments();
        result.micro_batch = m;
        return result;
      };
      for (int repeat = 0; repeat < 3; ++repeat) {
        auto prepare0 = object->prepare_async(arguments(0));
        auto prepare1 = object->prepare_async(arguments(1));
        expect_error(Errc::kInvalidArgument, "micro_batch is 2, must be from 0 to 1",
                     [&] { object->prepare_async(arguments(2)); });
        expect_error(Errc::kInvalidArgument, "micro_batch 0 was prepared and not finalized",
                     [&] { object->prepare_async(arguments(0)); });
        prepare0.hook();
        const Prepared got1 = prepare1.receiver();
        const Prepared got0 = prepare0.receiver();
        expect_error(Errc::kInvalidArgument, "hook: was called already", [&] { prepare0.hook(); });
        expect_error(Errc::kInvalidArgument, "hook: was called already", [&] { prepare1.hook(); });
        // The experts return what they received.
        auto back1 =
            object->finalize_async({outputs[1], got1.experts.rows, WeightAndReduce::no_op(), 1});
        auto back0 =
            object->finalize_async({outputs[0], got0.experts.rows, WeightAndReduce::no_op(), 0});
        back0.hook();
        back0.receiver();
        back1.receiver();
        expect_error(Errc::kInvalidArgument, "hook: was called already", [&] { back0.hook(); });
        for (std::size_t m = 0; m < 2; ++m) {
          EXPECT_EQ(std::memcmp(outputs[m].data(), inputs[m].hidden.data(),
                                outputs[m].view().num_bytes()),
                    0)
              << name_of(kind);
        }
      }
    });
  }
}

class PackedExperts final : public Experts {
 public:
  std::string_view name() const override { return "packed"; }
  bool is_batch_invariant() const override { return true; }
  bool supports_packed_ue8m0_act_scales() const override { return true; }
  std::size_t workspace_bytes(const TensorView&) const override { return 0; }
  void apply(const ExpertRows&, const TensorView&, std::span<std::byte>, Stream) override {}
};

TEST(PrepareFinalizeCallsTest, ExpertsWithPackedScalesGetThemFromLowLatencyOnly) {
  for (const PrepareKind kind : kAllClasses) {
    PrepareFinalizeConfig config = ClassCase{}.config();
    config.scheme = schemes::kFp8BlockDeepEp;
    run_ranks(2, [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, config);
      object->post_init_setup(PackedExperts());
      object->post_init_setup(PackedExperts());  // a second call changes nothing
      const CallInput input(test::random_batch_of({}).ranks[0], DType::kBF16);
      const Prepared prepared = object->prepare(input.arguments());
      EXPECT_EQ(prepared.experts.scheme, kind == PrepareKind::kLowLatency
                                             ? schemes::kFp8Ue8m0DeepEp
                                             : schemes::kFp8BlockDeepEp);
      const Tensor output(DType::kBF16, {5, 136});
      object->finalize({output, test::zeros_like(prepared.experts.rows), WeightAndReduce::no_op()});
    });
  }
  run_ranks(1, [](const Group& group) {
    PrepareFinalizeConfig config = ClassCase{}.config();
    config.scheme = schemes::kFp8Block;
    const auto object = make_low_latency(group, config);
    const CallInput input(test::random_batch_of({}).ranks[0], DType::kBF16);
    object->prepare(input.arguments());
    expect_error(Errc::kInvalidArgument, "post_init_setup comes after prepare",
                 [&] { object->post_init_setup(PackedExperts()); });
  });
}

}  // namespace
}  // namespace switchyard
