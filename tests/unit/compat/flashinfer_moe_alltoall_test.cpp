// SPDX-License-Identifier: Apache-2.0
//
// What FlashInfer's test of its one-sided all-to-all checks, including non-divisible cases.

#include <gtest/gtest.h>

#include "compat/flashinfer/moe_alltoall.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard::flashinfer {
namespace {

using test::run_ranks;
using test::ViewBatch;
using test::ViewShape;

constexpr std::int32_t kInvalid = -77;

// FlashInfer's non-divisible (P, T, E, K), with fewer tokens.
std::vector<ViewShape> shapes() {
  std::vector<ViewShape> all = test::view_shapes();
  all.push_back({4, 32, 6, 7, 64});
  all.push_back({5, 64, 8, 6, 64});
  all.push_back({3, 16, 10, 5, 64});
  return all;
}

TEST(FlashInferMoeAlltoAllTest, PayloadsArriveByRankAndSumsComeHome) {
  for (const ViewShape& shape : shapes()) {
    const std::vector<ViewBatch> batches = test::all_batches(shape);
    run_ranks(shape.num_ranks, [&](const Group& group) {
      const ViewBatch& own = batches[static_cast<std::size_t>(group.rank())];
      MoeAlltoAll moe(group, {shape.max_tokens + 3, shape.num_topk, shape.num_experts});
      const std::int64_t tr = shape.max_tokens;
      for (int round = 0; round < 2; ++round) {
        const std::vector<TensorView> got =
            moe.dispatch(own.ids32(), {own.x(), own.ids32(), own.weights()}, tr, Stream::host(),
                         {.invalid_token_expert_id = kInvalid, .expert_id_payload_index = 1});
        ASSERT_EQ(got[0].shape(0), shape.num_ranks);
        ASSERT_EQ(got[0].shape(1), tr);
        std::vector<std::int64_t> counts(static_cast<std::size_t>(shape.num_ranks), 0);
        for (const auto& [source, token] : test::arrivals_at(batches, group.rank())) {
          const std::int64_t row = source * tr + counts[static_cast<std::size_t>(source)]++;
          const ViewBatch& batch = batches[static_cast<std::size_t>(source)];
          EXPECT_EQ(test::bf16_at(got[0], (row + 1) * shape.hidden - 1), static_cast<float>(token));
          for (int k = 0; k < shape.num_topk; ++k) {
            const std::int64_t at = row * shape.num_topk + k;
            EXPECT_EQ(got[1].as<std::int32_t>()[at], batch.id(token, k));
            EXPECT_EQ(got[2].as<float>()[at], batch.weight(token, k));
          }
        }
        EXPECT_EQ(std::vector<std::int64_t>(moe.num_received().begin(), moe.num_received().end()),
                  counts);
        const auto* recv_counts = moe.recv_counts().as<std::int32_t>();
        EXPECT_EQ(std::vector<std::int64_t>(recv_counts, recv_counts + counts.size()), counts);
        for (std::int64_t row = 0; row < shape.num_ranks * tr; ++row) {
          if (row % tr < counts[static_cast<std::size_t>(row / tr)]) continue;
          for (int k = 0; k < shape.num_topk; ++k) {
            EXPECT_EQ(got[1].as<std::int32_t>()[row * shape.num_topk + k], kInvalid);
          }
        }
        const Tensor out = moe.combine(got[0]);
        for (std::int64_t i = 0; i < out.view().num_elements(); ++i) {
          const auto num_ranks = static_cast<float>(own.ranks_of(i / shape.hidden).size());
          EXPECT_EQ(out.as<std::uint16_t>()[i],
                    bf16_from_f32(0.0f + test::bf16_at(own.x(), i) * num_ranks));
        }
      }
    });
  }
}

TEST(FlashInferMoeAlltoAllTest, DispatchAndCombineAlternate) {
  run_ranks(2, [](const Group& group) {
    MoeAlltoAll moe(group, {.max_num_tokens = 3, .top_k = 1, .num_experts = 2});
    const std::int32_t id = 1;
    const TensorView ids = TensorView::of(&id, {1, 1});
    const auto refuses = [](const char* phrase, auto&& call) {
      test::expect_error(Errc::kInvalidArgument, phrase, call);
    };
    refuses("nothing was dispatched", [&] { moe.combine(ids); });
    const float value = 1.5f + static_cast<float>(group.rank());
    const TensorView x = TensorView::of(&value, {1, 1});
    const std::vector<TensorView> got = moe.dispatch(ids, {x}, 2);
    refuses("waits for its combine", [&] { moe.dispatch(ids, {x}, 2); });
    refuses("must be [2, 2, H]", [&] { moe.combine(x); });
    EXPECT_EQ(moe.num_received()[0], group.rank());
    const Tensor out = moe.combine(got[0]);
    EXPECT_EQ(*out.as<float>(), value);
  });
}

TEST(FlashInferMoeAlltoAllTest, BadArgumentsAreNamed) {
  run_ranks(2, [](const Group& group) {
    MoeAlltoAll moe(group, {.max_num_tokens = 2, .top_k = 3, .num_experts = 4});
    const Tensor ids(DType::kI32, {1, 3});
    const auto refuses = [](Errc code, const char* phrase, auto&& call) {
      test::expect_error(code, phrase, call);
    };
    refuses(Errc::kInvalidArgument, "no payloads",
            [&] { moe.dispatch(ids, std::vector<TensorView>(), 2); });
    refuses(Errc::kInvalidArgument, "runtime_max_tokens_per_rank is 3",
            [&] { moe.dispatch(ids, {ids}, 3); });
    refuses(Errc::kInvalidArgument, "expert_id_payload_index is 1", [&] {
      moe.dispatch(ids, {ids}, 2, Stream::host(),
                   {.invalid_token_expert_id = 4, .expert_id_payload_index = 1});
    });
    refuses(Errc::kNotSupported, "active_rank_mask is given",
            [&] { moe.dispatch(ids, {ids}, 2, Stream::host(), {.active_rank_mask = ids}); });
    refuses(Errc::kNotSupported, "enable_rank_mask is given",
            [&] { MoeAlltoAll masked(group, {.max_num_tokens = 2, .enable_rank_mask = true}); });
  });
}

TEST(FlashInferMoeAlltoAllTest, WorkspaceSizeIsFlashInfersFormula) {
  // 4 x 10 rows of 100 and of 33 bytes, each part rounded up to 128 bytes.
  EXPECT_EQ(MoeAlltoAll::get_workspace_size_per_rank(4, 10, 100, 33, 1), 128u + 4096u + 1408u);
  test::expect_error(Errc::kInvalidArgument, "overflows", [] {
    MoeAlltoAll::get_workspace_size_per_rank(std::int64_t{1} << 40, std::int64_t{1} << 40, 1, 1, 0);
  });
}

}  // namespace
}  // namespace switchyard::flashinfer
