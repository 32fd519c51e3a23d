// SPDX-License-Identifier: Apache-2.0
//
// Weights and ids that finalize is given, as the originals' finalize is, and the bits of vLLM's
// class of DeepEP V2 where it weighs rows by itself.

#include <algorithm>
#include <cstring>

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
using test::is_grouped;
using test::kAllClasses;
using test::run_ranks;

Bits bits_of(const Tensor& tensor) {
  return {tensor.as<std::uint16_t>(), tensor.as<std::uint16_t>() + tensor.view().num_elements()};
}

Tensor copy_of(const TensorView& view) { return copy_to(view, Device::cpu()); }

Tensor doubled(const TensorView& weights) {
  Tensor result = copy_of(weights);
  for (std::int64_t i = 0; i < weights.num_elements(); ++i) result.as<float>()[i] *= 2.0f;
  return result;
}

std::int32_t first_expert(const ClassCase& test, const Group& group) {
  return test.is_local() ? 0 : reference::first_expert(7, group.size(), group.rank());
}

/// A prepared call, and what its experts return.
struct Call {
  Call(PrepareFinalize& object, const ClassCase& test, const Group& group, const CallInput& input)
      : output(DType::kBF16, {input.hidden.shape(0), test.hidden}) {
    const Prepared prepared = object.prepare(input.arguments());
    rows = is_grouped(test.kind)
               ? test::grouped_rows(object, prepared, first_expert(test, group), false)
               : test::choice_rows(object, prepared);
    const bool has_own = prepared.topk_ids.has_value();
    ids = has_own ? prepared.topk_ids : input.ids.view();
    weights = has_own ? prepared.topk_weights : input.weights.view();
  }
  FinalizeArguments arguments(const WeightAndReduce& policy) const {
    return {output, rows, policy};
  }

  Tensor output;
  Tensor rows;
  TensorView ids;
  TensorView weights;
};

// Twice the weights give twice the output; those of prepare change nothing.
TEST(PrepareFinalizeChoicesTest, WeightsAndIdsMayBeGivenAgain) {
  for (const PrepareKind kind : kAllClasses) {
    const bool is_prefill = kind == PrepareKind::kElasticPrefill;
    const WeightAndReduce policy =
        is_prefill ? WeightAndReduce::contiguous() : WeightAndReduce::delegate();
    const ClassCase test{.kind = kind};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(test.num_ranks(), [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, test.config());
      const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())]);
      const Call plain(*object, test, group, input);
      object->finalize(plain.arguments(policy));
      const Call same(*object, test, group, input);
      FinalizeArguments given = same.arguments(policy);
      given.topk_weights = same.weights;
      given.topk_ids = same.ids;
      object->finalize(given);
      EXPECT_EQ(bits_of(same.output), bits_of(plain.output)) << name_of(kind);
      const Call twice(*object, test, group, input);
      given = twice.arguments(policy);
      const Tensor weights = doubled(twice.weights);
      given.topk_weights = weights;
      object->finalize(given);
      for (std::int64_t i = 0; i < plain.output.view().num_elements(); ++i) {
        EXPECT_EQ(f32_from_bf16(twice.output.as<std::uint16_t>()[i]),
                  2.0f * f32_from_bf16(plain.output.as<std::uint16_t>()[i]))
            << name_of(kind);
      }
    });
  }
}

// After weights on the input they count as 1, as in the originals.
TEST(PrepareFinalizeChoicesTest, GivenWeightsDoNotCountAfterWeightsOnTheInput) {
  for (const PrepareKind kind : kAllClasses) {
    const ClassCase test{.kind = kind, .num_topk = 1};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(test.num_ranks(), [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, test.config());
      const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())]);
      PrepareArguments arguments = input.arguments();
      arguments.apply_router_weight_on_input = true;
      Bits outputs[2];
      for (const bool is_given : {false, true}) {
        const Prepared prepared = object->prepare(arguments);
        const Tensor rows = copy_of(prepared.experts.rows);
        const Tensor output = test::zeros_like(input.hidden);
        FinalizeArguments results{output, rows};
        const Tensor weights =
            doubled(prepared.topk_ids.has_value() ? prepared.topk_weights : input.weights.view());
        if (is_given) results.topk_weights = weights;
        object->finalize(results);
        outputs[is_given] = bits_of(output);
      }
      EXPECT_EQ(outputs[1], outputs[0]) << name_of(kind);
    });
  }
}

TEST(PrepareFinalizeChoicesTest, OtherIdsAndWeightsThatCannotCountAreRefused) {
  for (const PrepareKind kind : kAllClasses) {
    for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
      ClassCase test{.kind = kind, .num_tokens = {2}, .none_share = 0};
      if (is_grouped(kind)) test.reduce = reduce;
      const reference::Batch batch = test::random_batch_of(test);
      run_ranks(1, [&](const Group& group) {
        const auto object = make_prepare_finalize(kind, group, test.config());
        const CallInput input(batch.ranks[0]);
        const Call call(*object, test, group, input);
        const auto refuse = [&](Errc code, const char* words, const TensorView& weights,
                                const TensorView& ids) {
          FinalizeArguments given = call.arguments({});
          given.topk_weights = weights;
          given.topk_ids = ids;
          expect_error(code, words, [&] { object->finalize(given); });
        };
        const Tensor wide(DType::kF32, {1, 9});
        const Tensor other = copy_of(call.ids);
        std::memset(other.data(), 0, other.view().num_bytes());
        refuse(Errc::kInvalidArgument, "topk_weights of finalize is f32 [1, 9], must be", wide, {});
        refuse(Errc::kInvalidArgument, "topk_ids of finalize is f32 [1, 9], must be", {}, wide);
        refuse(Errc::kInvalidArgument, "must be", call.ids, {});
        refuse(Errc::kInvalidArgument, "of topk_ids is 0 in finalize, must be", {}, other);
        const Tensor weights = copy_of(call.weights);
        if (is_grouped(kind) &&
            (reduce == Reduce::kPerRank || kind == PrepareKind::kElasticPrefill)) {
          refuse(Errc::kNotSupported, "not those that prepare handed out", weights, {});
        }
        object->finalize(call.arguments({}));
      });
    }
  }
}

float rounded(float x) { return f32_from_bf16(bf16_from_f32(x)); }

// What vLLM and DeepEP V2 compute for one element: each product is rounded, the rows of a rank are
// summed and rounded, and so are the ranks, by their highest choice.
float v2_element(const reference::RankInput& input, std::int64_t t, std::int64_t h, int num_ranks) {
  const auto first = [&](int rank) { return reference::first_expert(7, num_ranks, rank); };
  const std::int64_t num_topk = input.topk_ids.cols;
  std::vector<std::pair<std::int64_t, float>> ranks;  // highest choice, sum
  for (int rank = 0; rank < num_ranks; ++rank) {
    float sum = 0.0f;
    std::int64_t highest = -1;
    for (std::int64_t k = 0; k < num_topk; ++k) {
      const std::int64_t id = input.topk_ids(t, k);
      if (id < first(rank) || (rank + 1 < num_ranks && id >= first(rank + 1))) continue;
      const float row = rounded(rounded(input.tokens(t, h)) * test::factor_of(id));
      sum += rounded(row * input.topk_weights(t, k));
      highest = k;
    }
    if (highest >= 0) ranks.emplace_back(highest, rounded(sum));
  }
  std::sort(ranks.begin(), ranks.end());
  float sum = 0.0f;
  for (const auto& [k, part] : ranks) sum += part;
  return rounded(sum);
}

// Without an exchange one rank has all rows of a token.
TEST(PrepareFinalizeChoicesTest, ContiguousHasTheBitsOfVllm) {
  for (const PrepareKind kind :
       {PrepareKind::kElasticPrefill, PrepareKind::kElasticDecode, PrepareKind::kLocal}) {
    const ClassCase test{.kind = kind, .num_tokens = {5, 0, 6}, .num_topk = 5};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(test.num_ranks(), [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, test.config());
      const reference::RankInput& own = batch.ranks[static_cast<std::size_t>(group.rank())];
      Bits outputs[2];
      for (const bool delegates : {false, true}) {
        const Call call(*object, test, group, CallInput(own));
        object->finalize(call.arguments(delegates ? WeightAndReduce::delegate()
                                                  : WeightAndReduce::contiguous(true)));
        outputs[delegates] = bits_of(call.output);
      }
      if (own.tokens.rows > 0) {
        EXPECT_NE(outputs[0], outputs[1]) << "delegate rounds once";
      }
      for (std::int64_t t = 0; t < own.tokens.rows; ++t) {
        for (std::int64_t h = 0; h < test.hidden; ++h) {
          const auto at = static_cast<std::size_t>(t * test.hidden + h);
          ASSERT_EQ(f32_from_bf16(outputs[0][at]),
                    v2_element(own, t, h, test.is_local() ? 1 : group.size()))
              << name_of(kind) << " token " << t << " element " << h;
        }
      }
    });
  }
}

}  // namespace
}  // namespace switchyard
