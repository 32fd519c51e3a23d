// SPDX-License-Identifier: Apache-2.0
//
// Who weights and sums: every policy that a class supports gives the output of the layer, which
// src/conformance compares with the oracle, and the others are refused with nothing sent. Weights
// are powers of two, so weighting a row before or after rounding gives the same result.

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
using test::ClassCase;
using test::expect_error;
using test::factor_of;
using test::kAllClasses;
using test::run_ranks;
using test::zeros_like;

bool is_grouped(PrepareKind kind) {
  return kind == PrepareKind::kLowLatency || kind == PrepareKind::kElasticPrefill;
}

std::int64_t id_at(const TensorView& ids, std::int64_t i) {
  return ids.dtype() == DType::kI64 ? ids.as<std::int64_t>()[i] : ids.as<std::int32_t>()[i];
}

// Writes row `from`, times the expert's factor, times `weight`, as row `to` of a bf16 tensor.
void write_row(const TensorView& rows, std::int64_t from, std::int64_t expert, float weight,
               const Tensor& output, std::int64_t to) {
  const std::int64_t width = rows.shape(rows.num_dims() - 1);
  for (std::int64_t h = 0; h < width; ++h) {
    const float x = f32_from_bf16(rows.as<std::uint16_t>()[from * width + h]) * factor_of(expert);
    output.as<std::uint16_t>()[to * width + h] =
        bf16_from_f32(f32_from_bf16(bf16_from_f32(x)) * weight);
  }
}

Tensor nan_rows(std::initializer_list<std::int64_t> shape) {
  Tensor rows(DType::kBF16, shape);
  std::fill_n(rows.as<std::uint16_t>(), rows.view().num_elements(), 0x7FC0);
  return rows;
}

// [M, K, H]: one row per choice that this rank serves, NaN for the others.
Tensor choice_rows(const PrepareFinalize& object, const Prepared& prepared) {
  const TensorView& rows = prepared.experts.rows;
  const std::int64_t num_topk = object.num_topk();
  Tensor output = nan_rows({rows.shape(0), num_topk, rows.shape(1)});
  for (std::int64_t i = 0; i < rows.shape(0) * num_topk; ++i) {
    const std::int64_t id = id_at(prepared.topk_ids, i);
    if (id < 0 || object.expert_map().as<std::int32_t>()[id] < 0) continue;
    write_row(rows, i / num_topk, id, 1.0f, output, i);
  }
  return output;
}

// Expert-major result rows; multiplied by their weights if `is_weighted`.
Tensor grouped_rows(const PrepareFinalize& object, const Prepared& prepared, std::int32_t first,
                    bool is_weighted) {
  const ExpertRows& experts = prepared.experts;
  Tensor output = zeros_like(experts.rows);
  std::fill_n(output.as<std::uint16_t>(), output.view().num_elements(), 0x7FC0);
  for (const RowOrigin& origin : object.row_origins()) {
    write_row(experts.rows, origin.row, first + origin.expert, is_weighted ? origin.weight : 1.0f,
              output, origin.row);
  }
  return output;
}

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
          expect_error(Errc::kInvalidArgument, "weight_and_reduce is contiguous, must be delegate",
                       [&] {
                         object->finalize({output, rows, WeightAndReduce::contiguous()});
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
