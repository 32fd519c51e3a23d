// SPDX-License-Identifier: Apache-2.0
//
// What is refused: configurations, and calls on one rank, after which the group stays usable.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/modular_kernel.h"

#include "prepare_finalize_case.h"
#include "support/elements.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::CallInput;
using test::ClassCase;
using test::expect_error;
using test::kAllClasses;
using test::run_ranks;

void expect_config(PrepareKind kind, const PrepareFinalizeConfig& config, const std::string& words,
                   int num_ranks = 2) {
  expect_error(Errc::kInvalidArgument, words,
               [&] { prepare_finalize_memory(kind, config, num_ranks, 0); });
}

TEST(PrepareFinalizeErrorsTest, ConfigurationsThatNoClassServes) {
  for (const PrepareKind kind : kAllClasses) {
    const auto refuse = [&](const std::string& words, auto&& change) {
      PrepareFinalizeConfig config = ClassCase{}.config();
      change(config);
      expect_config(kind, config, words);
    };
    refuse("num_micro_batches is -1", [](auto& c) { c.num_micro_batches = -1; });
    refuse("num_micro_batches is 2147483647, must be from 1 to 64",
           [](auto& c) { c.num_micro_batches = std::numeric_limits<std::int32_t>::max(); });
    refuse("static_scale is absent, nvfp4 needs one", [](auto& c) { c.scheme = schemes::kNvfp4; });
    refuse("static_scale is absent", [](auto& c) { c.wire_scheme = schemes::kNvfp4; });
    for (const float scale : {0.0f, -1.0f, std::nanf(""), HUGE_VALF}) {
      refuse(fmt::format("static_scale is {}, must be a positive number", scale), [&](auto& c) {
        c.scheme = schemes::kFp8Tensor;
        c.static_scale = scale;
      });
    }
    refuse("must not both take static_scale", [](auto& c) {
      c.wire_scheme = schemes::kNvfp4;
      c.scheme = schemes::kFp8Tensor;
      c.static_scale = 1.0f;
    });
    refuse("hidden is 7, must be an even number", [](auto& c) {
      c.hidden = 7;
      c.scheme = schemes::kMxfp4;
      c.wire_scheme = schemes::kNone;
    });
    refuse("its rows have no scales", [](auto& c) { c.scale_layout = ScaleLayout::kColumnMajor; });
    refuse("swizzled scales are one byte", [](auto& c) {
      c.scheme = schemes::kFp8Token;
      c.wire_scheme = schemes::kNone;
      c.scale_layout = ScaleLayout::kSwizzled;
    });
    refuse("elements are e4m3 without scales", [](auto& c) { c.scheme.dtype = DType::kE4M3; });
    refuse("block is 64", [](auto& c) {  // packed UE8M0 scales need blocks of 128
      c.wire_scheme = schemes::kFp8Ue8m0;
      c.wire_scheme->block = 64;
    });
    refuse("global_to_physical[6] is 7, must be from 0 to 6",
           [](auto& c) { c.global_to_physical = {0, 1, 2, 3, 4, 5, 7}; });
    refuse("global_to_physical[1] is -1",
           [](auto& c) { c.global_to_physical = {0, -1, 2, 3, 4, 5, 6}; });
    refuse("global_to_physical has 2 entries", [](auto& c) { c.global_to_physical = {0, 1}; });
    refuse("ep_rank is 2 and ep_size 2", [](auto& c) { c.ep_rank = c.ep_size = 2; });
    refuse("hidden", [](auto& c) { c.hidden = 0; });
    refuse("hidden", [](auto& c) { c.hidden = -5; });
    refuse("", [](auto& c) { c.hidden = std::numeric_limits<std::int64_t>::max(); });
    refuse("", [](auto& c) { c.max_tokens_per_rank = std::numeric_limits<std::int64_t>::max(); });
    refuse("max_tokens_per_rank", [](auto& c) { c.max_tokens_per_rank = -1; });
    refuse("num_topk", [](auto& c) { c.num_topk = 65; });
    refuse("num_experts", [](auto& c) { c.num_experts = 65536; });
  }
  expect_config(PrepareKind::kLowLatency, ClassCase{}.config(), "0 ranks", 0);
  expect_error(Errc::kInvalidArgument, "kind is 7", [] {
    prepare_finalize_memory(static_cast<PrepareKind>(7), ClassCase{}.config(), 1, 0);
  });
}

// One rank makes every mistake while the other waits for it; then the call succeeds.
TEST(PrepareFinalizeErrorsTest, ABadCallOnOneRankLeavesTheGroupAsItWas) {
  for (const PrepareKind kind : kAllClasses) {
    ClassCase test{.kind = kind, .num_tokens = {4, 3}, .num_topk = 1};
    PrepareFinalizeConfig config = test.config();
    config.global_to_physical = {6, 5, 4, 3, 2, 1, 0};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(2, [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, config);
      const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())]);
      const Tensor output(DType::kBF16, {input.hidden.shape(0), test.hidden});
      const auto refuse = [&](const std::string& words, auto&& change) {
        PrepareArguments arguments = input.arguments();
        change(arguments);
        expect_error(Errc::kInvalidArgument, words, [&] { object->prepare(arguments); });
      };
      if (group.rank() == 1) {
        const Tensor bad_ids(DType::kI64, {3, 1});
        bad_ids.as<std::int64_t>()[2] = 7;
        const Tensor negative(DType::kI32, {3, 1});
        negative.as<std::int32_t>()[1] = -2;
        const Tensor narrow(DType::kBF16, {3, 8});
        const Tensor two(DType::kF32, {3, 2});
        refuse("is 7", [&](auto& a) { a.topk_ids = bad_ids; });
        refuse("is -2", [&](auto& a) { a.topk_ids = negative; });
        refuse("topk_ids", [&](auto& a) { a.topk_ids = {}; });
        refuse("topk_ids", [&](auto& a) { a.topk_ids = two; });
        refuse("tokens", [&](auto& a) { a.hidden = narrow; });
        refuse("tokens", [&](auto& a) { a.hidden = {}; });
        refuse("topk_weights", [&](auto& a) { a.topk_weights = two; });
        refuse("max_tokens is -1", [&](auto& a) { a.max_tokens = -1; });
        refuse("max_tokens is 7", [&](auto& a) { a.max_tokens = 7; });
        refuse("max_tokens", [&](auto& a) { a.max_tokens = 1; });
        refuse("micro_batch is 2", [&](auto& a) { a.micro_batch = 2; });
        refuse("micro_batch is -1", [&](auto& a) { a.micro_batch = -1; });
        refuse("f32 [T, 1]", [&](auto& a) {
          a.apply_router_weight_on_input = true;
          a.topk_weights = two;
        });
        const Tensor copy(DType::kBF16, {3, test.hidden});
        std::copy_n(input.hidden.as<std::uint16_t>(), 3 * test.hidden, copy.as<std::uint16_t>());
        refuse("is 7", [&](auto& a) {
          a.hidden = copy;
          a.topk_ids = bad_ids;
          a.apply_router_weight_on_input = a.weighs_in_place = true;
        });
        EXPECT_TRUE(std::equal(copy.as<std::uint16_t>(), copy.as<std::uint16_t>() + 3 * test.hidden,
                               input.hidden.as<std::uint16_t>()));
        expect_error(Errc::kInvalidArgument, "nothing was prepared",
                     [&] { object->row_origins(); });
        expect_error(Errc::kInvalidArgument, "nothing is prepared in micro_batch 0", [&] {
          object->finalize({output, output});
        });
      }
      const Prepared prepared = object->prepare(input.arguments());
      const Tensor rows = test::zeros_like(prepared.experts.rows);
      if (group.rank() == 1) {
        const Tensor short_output(DType::kBF16, {2, test.hidden});
        const Tensor short_rows(DType::kBF16, {1, 8});
        const auto no_op = WeightAndReduce::no_op();
        const auto refuse_end = [&](const std::string& words, const FinalizeArguments& a) {
          expect_error(Errc::kInvalidArgument, words, [&] { object->finalize(a); });
        };
        refuse_end("output is bf16 [2", {short_output, rows, no_op});
        refuse_end("output", {{}, rows, no_op});
        refuse_end("rows", {output, short_rows, no_op});
        refuse_end("rows", {output, {}, no_op});
        refuse_end("micro_batch is 9", {output, rows, no_op, 9});
      }
      object->finalize({output, rows, WeightAndReduce::no_op()});
      EXPECT_EQ(output.as<std::uint16_t>()[0], 0);
    });
  }
}

// Every rank gets the error, and the next call succeeds.
TEST(PrepareFinalizeErrorsTest, RanksThatDisagreeOnMaxTokensAreToldAndGoOn) {
  for (const PrepareKind kind : kAllClasses) {
    if (kind == PrepareKind::kLocal) continue;
    ClassCase test{.kind = kind, .num_tokens = {2, 2}, .max_tokens_per_rank = 16};
    const reference::Batch batch = test::random_batch_of(test);
    run_ranks(2, [&](const Group& group) {
      const auto object = make_prepare_finalize(kind, group, test.config());
      const CallInput input(batch.ranks[static_cast<std::size_t>(group.rank())]);
      PrepareArguments arguments = input.arguments();
      arguments.max_tokens = group.rank() == 0 ? 2 : 5;
      expect_error(Errc::kInvalidArgument, "max_tokens", [&] { object->prepare(arguments); });
      arguments.max_tokens = 5;
      const Prepared prepared = object->prepare(arguments);
      const Tensor rows = test::zeros_like(prepared.experts.rows);
      object->finalize({input.hidden, rows, WeightAndReduce::no_op()});
    });
  }
}

TEST(PrepareFinalizeErrorsTest, HiddenSizesAreRoundedAsTheOriginalsDo) {
  EXPECT_EQ(round_up_hidden_low_latency(1), 2048);
  EXPECT_EQ(round_up_hidden_low_latency(2049), 2560);
  EXPECT_EQ(round_up_hidden_low_latency(8192), 8192);
  EXPECT_EQ(round_up_hidden_512_bytes(2880, DType::kBF16), 3072);
  EXPECT_EQ(round_up_hidden_512_bytes(1, DType::kF32), 128);
  EXPECT_EQ(round_up_hidden_512_bytes(513, DType::kE4M3), 1024);
  EXPECT_EQ(round_up_hidden_512_bytes(1024, DType::kE2M1), 1024);
  EXPECT_EQ(round_up_hidden_512_bytes(1, DType::kE2M3), 2048);  // 6 bits each: 1536 bytes
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(round_up_hidden_512_bytes(kMax - 1100, DType::kBF16), kMax - 1023);
  for (const std::int64_t hidden : {std::int64_t{0}, std::int64_t{-1}, -kMax - 1}) {
    expect_error(Errc::kInvalidArgument, "hidden is", [&] { round_up_hidden_low_latency(hidden); });
    expect_error(Errc::kInvalidArgument, "hidden is",
                 [&] { round_up_hidden_512_bytes(hidden, DType::kBF16); });
  }
  expect_error(Errc::kInvalidArgument, "hidden is 8193", [] { round_up_hidden_low_latency(8193); });
  expect_error(Errc::kInvalidArgument, "overflows",
               [&] { round_up_hidden_512_bytes(kMax, DType::kBF16); });
}

}  // namespace
}  // namespace switchyard
