// SPDX-License-Identifier: Apache-2.0
//
// Who weights and sums: every policy that a class supports gives the output of the layer, which
// instruments/conformance compares with the oracle, and the others are refused with nothing sent.
// Weights are powers of two, so weighting a row before or after rounding gives the same result.

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prepare_finalize_case.h"
#include "quant/bf16.h"
#include "support/elements.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using Bits = std::vector<std::uint16_t>;
using test::CallInput;
using test::choice_rows;
using test::ClassCase;
using test::expect_error;
using test::grouped_rows;
using test::is_grouped;
using test::kAllClasses;
using test::run_ranks;
using test::zeros_like;

reference::Batch batch_of_powers(const ClassCase& test) {
  reference::Batch batch = test::random_batch_of(test);
  for (reference::RankInput& input : batch.ranks) {
    for (float& w : input.topk_weights.data) w = std::exp2(-std::floor(w * 4.0f));
  }
  return batch;
}

Bits bits_of(const Tensor& tensor) {
  return {tensor.as<std::uint16_t>(), tensor.as<std::uint16_t>() + tensor.view().num_elements()};
}

// What the layer returns whose experts' rows the class weighs and sums itself.
Bits layer_output(const Group& group, const ClassCase& test, const CallInput& input) {
  ModularKernel kernel = test::make_scaling_layer(group, test);
  const Tensor output(DType::kBF16, {input.hidden.shape(0), test.hidden});
  kernel.apply(input.arguments(), output);
  return bits_of(output);
}

TEST(PrepareFinalizePoliciesTest, RowsOfEachChoiceAreWeighedAndSummed) {
  for (const PrepareKind kind : kAllClasses) {
    if (is_grouped(kind)) continue;
    const ClassCase test{.kind = kind};
    const reference::Batch batch = batch_of_powers(test);
    run_ranks(test.num_ranks(), [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, test.config());
      const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())]);
      const Bits want = layer_output(group, test, input);
      const Tensor output(DType::kBF16, {input.hidden.shape(0), test.hidden});
      for (const WeightAndReduce policy :
           {WeightAndReduce::delegate(), WeightAndReduce::contiguous(true)}) {
        const Prepared prepared = object->prepare(input.arguments());
        const Tensor rows = choice_rows(*object, prepared);
        const Tensor summed(DType::kBF16, {prepared.experts.rows.shape(0), test.hidden});
        expect_error(Errc::kInvalidArgument, "must be delegate, no_op or contiguous", [&] {
          object->finalize({output, rows, WeightAndReduce::naive_batched(0)});
        });
        if (prepared.experts.rows.shape(0) > 0) {
          expect_error(Errc::kInvalidArgument, "pass no_op for rows that are summed", [&] {
            object->finalize({output, summed, policy});
          });
        }
        object->finalize({output, rows, policy});
        EXPECT_EQ(bits_of(output), want) << name_of(kind) << " " << name_of(policy.kind);
      }
    });
  }
}

// The caller's memory for the sums gives the same output; the shared row is added to the rounded
// output, which is rounded again.
TEST(PrepareFinalizePoliciesTest, SharedRowsAndMemoryForSumsMayBeGiven) {
  for (const PrepareKind kind : kAllClasses) {
    const ClassCase test{.kind = kind};
    const reference::Batch batch = batch_of_powers(test);
    run_ranks(test.num_ranks(), [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, test.config());
      const std::int32_t first =
          test.is_local() ? 0 : reference::first_expert(7, group.size(), group.rank());
      const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())]);
      const Prepared prepared = object->prepare(input.arguments());
      const Tensor rows = is_grouped(kind) ? grouped_rows(*object, prepared, first, false)
                                           : choice_rows(*object, prepared);
      const Tensor output(DType::kBF16, {input.hidden.shape(0), test.hidden});
      FinalizeArguments arguments{output, rows};
      arguments.shared = input.hidden;
      const Tensor wrong(DType::kBF16, {input.hidden.shape(0) + 1, test.hidden});
      FinalizeArguments refused = arguments;
      refused.shared = wrong;
      expect_error(Errc::kInvalidArgument, "shared is bf16", [&] { object->finalize(refused); });
      Tensor reduced;
      if (!is_grouped(kind)) {
        refused.shared = input.hidden;
        refused.reduced = wrong;
        if (prepared.experts.rows.shape(0) != wrong.shape(0)) {
          expect_error(Errc::kInvalidArgument, "reduced is bf16",
                       [&] { object->finalize(refused); });
        }
        reduced = zeros_like(prepared.experts.rows);
        arguments.reduced = reduced;
      }
      object->finalize(arguments);
      Bits want = layer_output(group, test, input);
      for (std::size_t i = 0; i < want.size(); ++i) {
        want[i] = bf16_from_f32(f32_from_bf16(want[i]) +
                                f32_from_bf16(input.hidden.as<std::uint16_t>()[i]));
      }
      EXPECT_EQ(bits_of(output), want) << name_of(kind);
    });
  }
}

TEST(PrepareFinalizePoliciesTest, GroupedRowsAreWeighedByTheClassOrBefore) {
  for (const PrepareKind kind : kAllClasses) {
    for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
      if (!is_grouped(kind)) continue;
      const ClassCase test{.kind = kind, .reduce = reduce};
      const reference::Batch batch = batch_of_powers(test);
      run_ranks(test.num_ranks(), [&](const Group& group) {
        const auto object = make_prepare_finalize(kind, group, test.config());
        const std::int32_t first =
            test.is_local() ? 0 : reference::first_expert(7, group.size(), group.rank());
        const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())]);
        const Bits want = layer_output(group, test, input);
        const Tensor output(DType::kBF16, {input.hidden.shape(0), test.hidden});
        const bool knows_weights =
            reduce == Reduce::kPerRank || kind == PrepareKind::kElasticPrefill;
        for (const bool is_weighted : {false, true}) {
          if (is_weighted && !knows_weights) continue;
          const Prepared prepared = object->prepare(input.arguments());
          const Tensor rows = grouped_rows(*object, prepared, first, is_weighted);
          const bool may_be_contiguous = kind == PrepareKind::kElasticPrefill;
          expect_error(Errc::kInvalidArgument,
                       may_be_contiguous ? "naive_batched, must be delegate, contiguous or no_op"
                                         : "contiguous, must be delegate or no_op",
                       [&] {
                         object->finalize({output, rows,
                                           may_be_contiguous ? WeightAndReduce::naive_batched(0)
                                                             : WeightAndReduce::contiguous()});
                       });
          object->finalize(
              {output, rows, is_weighted ? WeightAndReduce::no_op() : WeightAndReduce::delegate()});
          EXPECT_EQ(bits_of(output), want)
              << name_of(kind) << " " << name_of(reduce) << " weighted " << is_weighted;
        }
      });
    }
  }
}

}  // namespace
}  // namespace switchyard
