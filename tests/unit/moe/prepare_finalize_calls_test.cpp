// SPDX-License-Identifier: Apache-2.0
//
// What a call may vary, for every class, besides what instruments/conformance compares with the
// oracle: weights on the input, rows that the experts quantize, and two calls at once.

#include <cstring>

#include <gtest/gtest.h>

#include "switchyard/micro_batches.h"

#include "prepare_finalize_case.h"
#include "quant/bf16.h"
#include "reference/batched.h"
#include "support/elements.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;

class QuantizingExperts final : public Experts {
 public:
  std::string_view name() const override { return "quantizing"; }
  bool is_batch_invariant() const override { return true; }
  bool expects_unquantized_inputs() const override { return true; }
  std::size_t workspace_bytes(const TensorView&) const override { return 0; }
  void apply(const ExpertRows&, const TensorView&, std::span<std::byte>, Stream) override {}
};

// The second exchange is taken by the constructor, or by post_init_setup for experts that want it.
TEST(PrepareFinalizeCallsTest, DeferredRowsNeedAnExchangeOfTheirOwn) {
  for (const PrepareKind kind : kAllClasses) {
    const ClassCase test{.kind = kind, .num_tokens = {5, 2}, .scheme = schemes::kFp8Block};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(2, [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, test.config());
      const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())]);
      PrepareArguments deferred = input.arguments();
      deferred.defer_input_quant = true;
      expect_invalid("set PrepareFinalizeConfig::defers_input_quant",
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
      ModularKernel kernel = test::make_scaling_layer(group, test);
      reference::RankInput weighted = batch.ranks[r];
      for (std::int64_t t = 0; t < weighted.tokens.rows; ++t) {
        for (float& x : weighted.tokens.row(t)) {
          x = reference::weigh_input(DType::kBF16, x, weighted.topk_weights(t, 0));
        }
        weighted.topk_weights(t, 0) = 1.0f;
      }
      const CallInput plain(weighted);
      const Tensor want(DType::kBF16, {weighted.tokens.rows, test.hidden});
      kernel.apply(plain.arguments(), want);
      for (const bool in_place : {false, true}) {
        const CallInput input(batch.ranks[r]);
        const CallInput copy(batch.ranks[r]);
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

// Two calls at once with interleaved halves; there is no micro-batch for a third. The classes of
// DeepEP have both without being asked.
TEST(PrepareFinalizeCallsTest, TwoMicroBatchesAreIndependent) {
  for (const PrepareKind kind : kAllClasses) {
    ClassCase test{.kind = kind, .num_topk = 1, .none_share = 0.0};
    PrepareFinalizeConfig config = test.config();
    const bool has_two = kind == PrepareKind::kLowLatency || kind == PrepareKind::kElasticDecode ||
                         kind == PrepareKind::kElasticPrefill;  // handles in vLLM's class
    if (!has_two) config.num_micro_batches = 2;
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
        inputs.emplace_back(input);
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
        expect_invalid("micro_batch is 2, must be from 0 to 1",
                       [&] { object->prepare_async(arguments(2)); });
        expect_invalid("micro_batch 0 was prepared and not finalized",
                       [&] { object->prepare_async(arguments(0)); });
        prepare0.hook();
        const Prepared got1 = prepare1.receiver();
        const Prepared got0 = prepare0.receiver();
        expect_invalid("hook: was called already", [&] { prepare0.hook(); });
        expect_invalid("hook: was called already", [&] { prepare1.hook(); });
        // The experts return what they received.
        auto back1 =
            object->finalize_async({outputs[1], got1.experts.rows, WeightAndReduce::no_op(), 1});
        auto back0 =
            object->finalize_async({outputs[0], got0.experts.rows, WeightAndReduce::no_op(), 0});
        back0.hook();
        back0.receiver();
        back1.receiver();
        expect_invalid("hook: was called already", [&] { back0.hook(); });
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

TEST(PrepareFinalizeCallsTest, CopiedInputsMayBeOverwrittenBeforeTheReceivePart) {
  for (const PrepareKind kind : kAllClasses) {
    const ClassCase test{.kind = kind, .num_topk = 1, .none_share = 0.0};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(test.num_ranks(), [&](const Group& group) {
      reference::RankInput own = batch.ranks[static_cast<std::size_t>(group.rank())];
      for (float& w : own.topk_weights.data) w = 1.0f;
      const CallInput input(own);
      const auto object = make_prepare_finalize(kind, group, test.config());
      const auto overwrite = [](const Tensor& tensor) {
        std::memset(tensor.data(), 0x7F, tensor.view().num_bytes());
      };
      const Tensor hidden = copy_to(input.hidden, Device::cpu());
      PrepareArguments arguments{hidden, input.ids, input.weights};
      arguments.copies_inputs = true;
      const auto prepare = object->prepare_async(arguments);
      overwrite(hidden);
      const Prepared prepared = prepare.receiver();
      const Tensor rows = copy_to(prepared.experts.rows, Device::cpu());
      const Tensor output = test::zeros_like(input.hidden);
      FinalizeArguments results{output, rows, WeightAndReduce::no_op()};
      results.copies_inputs = true;
      const auto finalize = object->finalize_async(results);
      overwrite(rows);
      finalize.receiver();
      EXPECT_EQ(std::memcmp(output.data(), input.hidden.data(), output.view().num_bytes()), 0)
          << name_of(kind);
    });
  }
}

// What another micro-batch left to this one is received before this one sends.
TEST(PrepareFinalizeCallsTest, FinalizeFirstRunsThePendingHook) {
  for (const bool is_async : {false, true}) {
    run_ranks(1, [&](const Group& group) {
      const auto object = make_low_latency(group, ClassCase{}.config());
      const CallInput input(test::random_batch_of({}).ranks[0]);
      const Tensor output = test::zeros_like(input.hidden);
      bool has_run = false;
      run_micro_batches(group, 2, [&](int m) {
        PrepareArguments arguments = input.arguments();
        arguments.micro_batch = m;
        const Prepared prepared = object->prepare(arguments);
        const Tensor rows = test::zeros_like(prepared.experts.rows);
        if (m == 0) {
          dbo_register_recv_hook([&] { has_run = true; });
          dbo_yield();
        }
        EXPECT_EQ(has_run, m == 0);
        const FinalizeArguments results{output, rows, {}, m};
        if (is_async) {
          object->finalize_async(results).receiver();
        } else {
          object->finalize(results);
        }
        EXPECT_TRUE(has_run);
      });
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
      const CallInput input(test::random_batch_of({}).ranks[0]);
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
    const CallInput input(test::random_batch_of({}).ranks[0]);
    object->prepare(input.arguments());
    expect_invalid("post_init_setup comes after prepare",
                   [&] { object->post_init_setup(PackedExperts()); });
  });
}

TEST(PrepareFinalizeCallsTest, WeightOnTheInputNeedsOneChoice) {
  const auto object = make_local(ClassCase{}.config());
  const CallInput input(test::random_batch_of({}).ranks[0]);
  PrepareArguments arguments = input.arguments();
  arguments.apply_router_weight_on_input = true;
  expect_invalid("with 3 experts a token, must be 1", [&] { object->prepare(arguments); });
}

TEST(PrepareFinalizeCallsTest, ClassesSayWhatTheyAre) {
  run_ranks(2, [](const Group& group) {
    const auto low_latency = make_low_latency(group, ClassCase{.num_experts = 2}.config());
    EXPECT_EQ(low_latency->name(), "low_latency");
    EXPECT_EQ(low_latency->activation_format(), ActivationFormat::kBatched);
    EXPECT_EQ(low_latency->num_dispatchers(), 2);
    EXPECT_EQ(low_latency->max_num_tokens_per_rank(), 6);
    EXPECT_EQ(low_latency->max_buffer_rows(), 12);  // one expert, six tokens per rank
    EXPECT_TRUE(low_latency->output_is_reduced());
    EXPECT_TRUE(low_latency->supports_async());
    EXPECT_EQ(low_latency->topk_indices_dtype(), std::nullopt);
  });
  EXPECT_EQ(make_local(ClassCase{}.config())->activation_format(), ActivationFormat::kStandard);
}

}  // namespace
}  // namespace switchyard
