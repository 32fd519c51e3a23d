// SPDX-License-Identifier: Apache-2.0
//
// What FlashInfer's test of its two-sided all-to-all checks; also slots that do not divide evenly.

#include <gtest/gtest.h>

#include "compat/flashinfer/mnnvl_moe.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard::flashinfer {
namespace {

using test::run_ranks;
using test::ViewBatch;
using test::ViewShape;

std::int32_t i32_at(const Tensor& tensor, std::int64_t i) { return tensor.as<std::int32_t>()[i]; }

void check_send_lists(const MoEAlltoallInfo& info, const ViewBatch& own, const ViewShape& shape) {
  std::int32_t place = 0;
  for (int d = 0; d < shape.num_ranks; ++d) {
    for (std::int64_t t = 0; t < own.num_tokens(); ++t) {
      if (own.ranks_of(t).count(d) == 0) continue;
      int k = 0;
      while (own.id(t, k) < 0 || shape.ownership().owner(own.id(t, k)) != d) ++k;
      EXPECT_EQ(i32_at(info.send_rank_local_indices, place), t);
      EXPECT_EQ(i32_at(info.backward_recv_rank_local_indices, place++), t * shape.num_topk + k);
    }
    EXPECT_EQ(i32_at(info.send_rank_count_cumsum, d), place);
  }
  for (std::int64_t i = place; i < info.send_rank_local_indices.shape(0); ++i) {
    EXPECT_EQ(i32_at(info.send_rank_local_indices, i), -1);
  }
}

void check_received(const MoEAlltoallPrepared& got, const std::vector<ViewBatch>& batches, int rank,
                    const ViewShape& shape) {
  const auto arrivals = test::arrivals_at(batches, rank);
  const ExpertOwnership slots = shape.ownership();
  ASSERT_EQ(got.expert_ids.shape(0), shape.num_ranks * shape.max_tokens);
  for (std::int64_t n = 0; n < got.expert_ids.shape(0); ++n) {
    EXPECT_EQ(i32_at(got.info.recv_rank_local_indices, n), n);
    const bool is_token = n < static_cast<std::int64_t>(arrivals.size());
    const auto [source, token] =
        is_token ? arrivals[static_cast<std::size_t>(n)] : std::pair<int, std::int64_t>{-1, 0};
    for (int k = 0; k < shape.num_topk; ++k) {
      const std::int64_t at = n * shape.num_topk + k;
      const ViewBatch* batch = is_token ? &batches[static_cast<std::size_t>(source)] : nullptr;
      const int id = is_token ? batch->id(token, k) : -1;
      const bool is_here = id >= 0 && slots.owner(id) == rank;
      EXPECT_EQ(i32_at(got.expert_ids, at), is_here ? id : shape.num_experts);
      EXPECT_EQ(got.scales.as<float>()[at], is_token ? batch->weight(token, k) : 0.0f);
    }
  }
  EXPECT_EQ(i32_at(got.info.recv_rank_count_cumsum, shape.num_ranks - 1),
            static_cast<std::int32_t>(arrivals.size()));
}

TEST(FlashInferTwoSidedTest, PrepareMovesAndSums) {
  for (const ViewShape& shape : test::view_shapes()) {
    const std::vector<ViewBatch> batches = test::all_batches(shape);
    run_ranks(shape.num_ranks, [&](const Group& group) {
      const ViewBatch& own = batches[static_cast<std::size_t>(group.rank())];
      MnnvlMoe moe(group, {.max_token_count_per_rank = shape.max_tokens + 2});
      const std::vector<std::int32_t> statics{group.rank(), 5};
      const MoEAlltoallPrepared got = moe.prepare_without_allgather(
          own.ids32(), own.weights(), TensorView::of(statics.data(), {2}), shape.max_tokens, 2,
          shape.num_experts);
      check_send_lists(got.info, own, shape);
      check_received(got, batches, group.rank(), shape);
      for (int r = 0; r < shape.num_ranks; ++r) {
        EXPECT_EQ(i32_at(got.gathered_expert_statics, 2 * r), r);
        EXPECT_EQ(i32_at(got.gathered_expert_statics, 2 * r + 1), 5);
      }

      // Payloads of two sizes: rows alone, then ids and rows in one exchange.
      const Tensor rows = moe.alltoallv(own.x(), got.info);
      const std::vector<Tensor> both = moe.alltoallv({own.ids(), own.x()}, got.info);
      EXPECT_EQ(test::bytes_of(both[1]), test::bytes_of(rows));
      const auto arrivals = test::arrivals_at(batches, group.rank());
      for (std::size_t n = 0; n < arrivals.size(); ++n) {
        const auto& [source, token] = arrivals[n];
        const auto last = static_cast<std::int64_t>(n + 1) * shape.hidden - 1;
        EXPECT_EQ(test::bf16_at(rows, last - 1), static_cast<float>(source - 128));
        EXPECT_EQ(test::bf16_at(rows, last), static_cast<float>(token));
        EXPECT_EQ(both[0].as<std::int64_t>()[n * static_cast<std::size_t>(shape.num_topk)],
                  batches[static_cast<std::size_t>(source)].id(token, 0));
      }

      // With identity experts, the output is the token times its number of ranks.
      const Tensor out = moe.alltoallv_combine(rows, got.info);
      ASSERT_EQ(out.shape(0), own.num_tokens());
      for (std::int64_t i = 0; i < out.view().num_elements(); ++i) {
        const auto num_ranks = static_cast<float>(own.ranks_of(i / shape.hidden).size());
        EXPECT_EQ(out.as<std::uint16_t>()[i],
                  bf16_from_f32(0.0f + test::bf16_at(own.x(), i) * num_ranks));
      }
    });
  }
}

TEST(FlashInferTwoSidedTest, NegativeIdsAndSlotCountAreNobodys) {
  run_ranks(2, [](const Group& group) {
    MnnvlMoe moe(group, {.max_token_count_per_rank = 4});
    const std::vector<std::int32_t> ids{-1, 20, -7, 0, 20, 19};
    const MoEAlltoallPrepared got =
        moe.prepare_without_allgather(TensorView::of(ids.data(), {3, 2}), {}, {}, 4, 16, 20);
    EXPECT_FALSE(got.scales.view().has_value());
    // Token 1 goes to rank 0, token 2 to rank 1.
    EXPECT_EQ(i32_at(got.info.send_rank_count_cumsum, 0), 1);
    EXPECT_EQ(i32_at(got.info.send_rank_count_cumsum, 1), 2);
    EXPECT_EQ(i32_at(got.info.backward_recv_rank_local_indices, 0), 3);
    EXPECT_EQ(i32_at(got.info.recv_rank_count_cumsum, 1), 2);
    EXPECT_EQ(i32_at(got.expert_ids, 0), 20);
    EXPECT_EQ(i32_at(got.expert_ids, 1), group.rank() == 0 ? 0 : 19);
  });
}

TEST(FlashInferTwoSidedTest, BadArgumentsAreNamed) {
  run_ranks(1, [](const Group& group) {
    const auto refuses = [](const char* phrase, auto&& call) {
      test::expect_error(Errc::kInvalidArgument, phrase, call);
    };
    MnnvlMoe moe(group, {.max_token_count_per_rank = 4});
    const std::vector<std::int32_t> ids{0, 1, 9, 2};
    const TensorView view = TensorView::of(ids.data(), {2, 2});
    const auto prepare = [&](std::int64_t max_tokens, std::int32_t slots) {
      return moe.prepare_without_allgather(view, {}, {}, max_tokens, 8, slots);
    };
    refuses("max_token_count_per_rank is 5", [&] { prepare(5, 12); });
    refuses("element 2 of expert_ids is 9", [&] { prepare(4, 8); });
    refuses("info is empty", [&] { moe.alltoallv(view, {}); });
    const MoEAlltoallInfo info = prepare(4, 12).info;
    refuses("no payloads", [&] { moe.alltoallv(std::vector<TensorView>(), info); });
    refuses("must be [4, H]", [&] { moe.alltoallv_combine(view, info); });
  });
  EXPECT_GT(MnnvlMoe::workspace_size_per_rank(64, 16, 4, 4096, 4, 0).window_bytes, 64u * 4096);
}

}  // namespace
}  // namespace switchyard::flashinfer
