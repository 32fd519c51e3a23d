// SPDX-License-Identifier: Apache-2.0
//
// What DeepEP's test of its intranode calls checks, with small sizes.

#include <utility>

#include <gtest/gtest.h>

#include "compat/deep_ep/buffer.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard::deep_ep {
namespace {

using namespace test;

struct Rank {
  Rank(const Group& group, const ViewShape& of)
      : shape(of),
        rank(group.rank()),
        batches(test::all_batches(of)),
        own(batches[static_cast<std::size_t>(group.rank())]),
        buffer(group, {.max_tokens_per_rank = of.max_tokens}) {}

  BufferDispatched dispatch(BufferDispatchOptions options = {}) {
    options.topk_weights = own.weights();
    return buffer.dispatch(own.x(), own.ids(), shape.num_experts, Stream::host(), options);
  }

  ViewShape shape;
  int rank;
  std::vector<ViewBatch> batches;
  const ViewBatch& own;
  Buffer buffer;
};

void check_received(const Rank& r, const BufferDispatched& got) {
  const auto arrivals = test::arrivals_at(r.batches, r.rank);
  const ExpertOwnership ownership = r.shape.ownership();
  ASSERT_GE(got.recv_x.shape(0), static_cast<std::int64_t>(arrivals.size()));
  for (std::size_t n = 0; n < arrivals.size(); ++n) {
    const auto& [source, token] = arrivals[n];
    const auto row = static_cast<std::int64_t>(n);
    EXPECT_EQ(bf16_at(got.recv_x, row * r.shape.hidden), static_cast<float>(source - 128));
    EXPECT_EQ(bf16_at(got.recv_x, (row + 1) * r.shape.hidden - 1), static_cast<float>(token));
    const ViewBatch& batch = r.batches[static_cast<std::size_t>(source)];
    for (int k = 0; k < r.shape.num_topk; ++k) {
      const int id = batch.id(token, k);
      const bool is_local = id >= 0 && ownership.owner(id) == r.rank;
      const std::int64_t at = row * r.shape.num_topk + k;
      EXPECT_EQ(got.recv_topk_idx.as<std::int64_t>()[at],
                is_local ? ownership.local_index(id) : -1);
      EXPECT_EQ(got.recv_topk_weights.as<float>()[at], is_local ? batch.weight(token, k) : 0.0f);
    }
  }
}

// bias 0 + bias 1 + the token once per rank that received it, in f32, rounded once.
void check_combined(const Rank& r, const TensorView& combined,
                    const std::vector<TensorView>& bias) {
  for (std::int64_t i = 0; i < combined.num_elements(); ++i) {
    float sum = 0.0f;
    for (const TensorView& term : bias) sum += bf16_at(term, i);
    const std::size_t num_ranks = r.own.ranks_of(i / r.shape.hidden).size();
    for (std::size_t n = 0; n < num_ranks; ++n) sum += bf16_at(r.own.x(), i);
    EXPECT_EQ(combined.as<std::uint16_t>()[i], bf16_from_f32(sum));
  }
}

void check_weights(const Rank& r, const TensorView& weights) {
  for (std::int64_t i = 0; i < weights.num_elements(); ++i) {
    const std::int64_t t = i / r.shape.num_topk;
    const std::int64_t k = i % r.shape.num_topk;
    EXPECT_EQ(weights.as<float>()[i], r.own.id(t, k) >= 0 ? r.own.weight(t, k) : 0.0f);
  }
}

TEST(DeepEpBufferTest, RowsComeOnceARankAndSumsHaveBiasFirst) {
  for (const ViewShape& shape : test::view_shapes()) {
    run_ranks(shape.num_ranks, [&](const Group& group) {
      Rank r(group, shape);
      const BufferDispatched got = r.dispatch({.expert_alignment = 4});
      check_received(r, got);
      std::vector<std::int64_t> counts(
          static_cast<std::size_t>(shape.ownership().count(group.rank())), 0);
      for (std::int64_t i = 0; i < got.recv_topk_idx.view().num_elements(); ++i) {
        const std::int64_t local = got.recv_topk_idx.as<std::int64_t>()[i];
        if (local >= 0) ++counts[static_cast<std::size_t>(local)];
      }
      for (std::int64_t& count : counts) count = (count + 3) / 4 * 4;
      EXPECT_EQ(got.num_recv_tokens_per_expert_list, counts);

      const Tensor bias_0 = test::random_bias(r.own.num_tokens(), shape.hidden, 1);
      const Tensor bias_1 = test::random_bias(r.own.num_tokens(), shape.hidden, 2);
      const BufferCombined combined = r.buffer.combine(got.recv_x, got.handle, Stream::host(),
                                                       got.recv_topk_weights, {bias_0, bias_1});
      check_combined(r, combined.combined_x, {bias_0, bias_1});
      check_weights(r, combined.combined_topk_weights);
      check_combined(r, r.buffer.combine(got.recv_x, got.handle).combined_x, {});
    });
  }
}

TEST(DeepEpBufferTest, LayoutCountsATokenOnceARank) {
  run_ranks(3, [](const Group& group) {
    const Buffer buffer(group, {.max_tokens_per_rank = 4});
    // 7 experts over 3 ranks: 0 to 2, 3 and 4, 5 and 6.
    const std::vector<std::int64_t> ids{0, 2, 3, -1, -1, -1, 6, 5, 4};
    const DispatchLayout layout = buffer.get_dispatch_layout(TensorView::of(ids.data(), {3, 3}), 7);
    const auto list = [](const Tensor& t) {
      return std::vector<std::int32_t>(t.as<std::int32_t>(), t.as<std::int32_t>() + t.shape(0));
    };
    EXPECT_EQ(list(layout.num_tokens_per_rank), (std::vector<std::int32_t>{1, 2, 1}));
    EXPECT_EQ(list(layout.num_tokens_per_expert), (std::vector<std::int32_t>{1, 0, 1, 1, 1, 1, 1}));
    EXPECT_EQ(test::bytes_of(layout.is_token_in_rank),
              (std::vector<std::uint8_t>{1, 1, 0, 0, 0, 0, 0, 1, 1}));
    test::expect_invalid("topk_idx[2, 0] is 6", [&] {
      (void)buffer.get_dispatch_layout(TensorView::of(ids.data(), {3, 3}), 6);
    });
  });
}

TEST(DeepEpBufferTest, WorstCaseRowsHaveNoIdsAtTheEnd) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    const BufferDispatched got = r.dispatch({.num_worst_tokens = 18});
    ASSERT_EQ(got.recv_x.shape(0), 18);
    EXPECT_TRUE(got.num_recv_tokens_per_expert_list.empty());
    check_received(r, got);
    const auto first = static_cast<std::int64_t>(test::arrivals_at(r.batches, r.rank).size());
    for (std::int64_t i = first * 3; i < 18 * 3; ++i) {
      EXPECT_EQ(got.recv_topk_idx.as<std::int64_t>()[i], -1);
    }
    check_combined(r, r.buffer.combine(got.recv_x, got.handle).combined_x, {});
    test::expect_invalid("num_worst_tokens is 17", [&] { r.dispatch({.num_worst_tokens = 17}); });
  });
}

TEST(DeepEpBufferTest, AHandleServesAgainAlsoForRowsOfAnotherFormat) {
  run_ranks(3, [](const Group& group) {
    Rank r(group, {3, 7, 4, 6, 256});
    const BufferDispatched fresh = r.dispatch();
    const auto want = test::bytes_of(fresh.recv_x);
    const BufferDispatched again = r.buffer.dispatch(r.own.x(), fresh.handle);
    EXPECT_EQ(test::bytes_of(again.recv_x), want);
    EXPECT_FALSE(again.recv_topk_idx.view().has_value());
    check_combined(r, r.buffer.combine(again.recv_x, again.handle).combined_x, {});

    // Codes and opaque scales of 4 bytes: the rank and the token.
    Tensor codes(DType::kE4M3, {r.own.num_tokens(), 256});
    Tensor scales(DType::kI32, {r.own.num_tokens(), 2});
    std::memset(codes.data(), r.rank + 1, codes.view().num_bytes());
    for (std::int32_t i = 0; i < r.own.num_tokens() * 2; ++i) scales.as<std::int32_t>()[i] = i / 2;
    const BufferDispatched fp8 = r.buffer.dispatch(codes, fresh.handle, Stream::host(), scales);
    const auto arrivals = test::arrivals_at(r.batches, r.rank);
    ASSERT_EQ(fp8.recv_x_scales.dtype(), DType::kI32);
    for (std::size_t n = 0; n < arrivals.size(); ++n) {
      EXPECT_EQ(fp8.recv_x.as<std::uint8_t>()[n * 256], arrivals[n].first + 1);
      EXPECT_EQ(fp8.recv_x_scales.as<std::int32_t>()[n * 2], arrivals[n].second);
    }
    const BufferDispatched back = r.buffer.dispatch(r.own.x(), fresh.handle);
    EXPECT_EQ(test::bytes_of(back.recv_x), want);
  });
}

TEST(DeepEpBufferTest, WeightsThatOneRankKeepsEndTheHandleToo) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    const BufferDispatched got = r.dispatch();
    if (group.rank() == 0) {
      test::expect_invalid("rank 1 passed no row_weights", [&] {
        r.buffer.combine(got.recv_x, got.handle, Stream::host(), got.recv_topk_weights);
      });
    } else {
      check_combined(r, r.buffer.combine(got.recv_x, got.handle).combined_x, {});
    }
    const BufferCombined again =
        r.buffer.combine(got.recv_x, got.handle, Stream::host(), got.recv_topk_weights);
    check_weights(r, again.combined_topk_weights);
  });
}

TEST(DeepEpBufferTest, BadArgumentsAreNamed) {
  run_ranks(1, [](const Group& group) {
    Rank r(group, {1, 4, 2, 5, 256});
    expect_invalid("the handle is empty", [&] { r.buffer.combine(r.own.x(), {}); });
    expect_invalid("expert_alignment is 0", [&] { r.dispatch({.expert_alignment = 0}); });
    expect_invalid("must be [T, H] and [T, K]", [&] { r.buffer.dispatch(r.own.x(), {}, 4); });
    expect_invalid("must be bf16, or e4m3 with scales",
                   [&] { r.buffer.dispatch(r.own.ids(), r.own.ids(), 4); });
    const BufferDispatched got = r.dispatch();
    const TensorView bias = r.own.x();
    expect_invalid("3 bias tensors", [&] {
      r.buffer.combine(got.recv_x, got.handle, Stream::host(), {}, {bias, bias, bias});
    });
    const BufferDispatched second = r.dispatch();
    expect_invalid("2 handles are alive", [&] { r.dispatch(); });
    check_combined(r, r.buffer.combine(got.recv_x, got.handle).combined_x, {});
  });
}

// A different size is named when memory is allocated for it; later the ranks only time out.
TEST(DeepEpBufferTest, RanksThatPassOtherSizesGetAnError) {
  constexpr std::int64_t kTimeoutMs = 100;
  run_ranks(
      2,
      [](const Group& group) {
        Buffer buffer(group, {.max_tokens_per_rank = 2});
        const Tensor ids(DType::kI64, {2, 1});
        const auto dispatch = [&](std::int64_t hidden) {
          return buffer.dispatch(Tensor(DType::kBF16, {2, hidden}), ids, 2);
        };
        test::expect_invalid("rank 1 has hidden 32, but rank 0 has 16",
                             [&] { dispatch(16 * (group.rank() + 1)); });
        EXPECT_EQ(dispatch(16).recv_x.shape(1), 16);
        test::expect_error(Errc::kTimeout, "within 0.1 s",
                           [&] { dispatch(16 * (group.rank() + 1)); });
      },
      kTimeoutMs);
}

TEST(DeepEpBufferTest, ABufferThatWasMovedFromSaysSo) {
  run_ranks(1, [](const Group& group) {
    Rank r(group, {});
    const Buffer taken = std::move(r.buffer);
    test::expect_invalid("Buffer: it was moved from", [&] { r.dispatch(); });
  });
}

TEST(DeepEpBufferTest, HandlesSayWhereRowsCameFrom) {
  for (const ViewShape& shape : test::view_shapes()) {
    run_ranks(shape.num_ranks, [&](const Group& group) {
      Rank r(group, shape);
      for (const std::int64_t worst : {std::int64_t{0}, shape.num_ranks * shape.max_tokens}) {
        const BufferDispatched got = r.dispatch({.num_worst_tokens = worst});
        const HandleTensors tensors = r.buffer.handle_tensors(got.handle);
        const auto arrivals = test::arrivals_at(r.batches, r.rank);
        ASSERT_EQ(tensors.recv_src_idx.view().shape(0), got.recv_x.shape(0));
        std::vector<std::int32_t> counts(static_cast<std::size_t>(shape.num_ranks), 0);
        for (std::int64_t n = 0; n < got.recv_x.shape(0); ++n) {
          const auto row = static_cast<std::size_t>(n);
          const bool is_valid = row < arrivals.size();
          EXPECT_EQ(tensors.recv_src_idx.as<std::int32_t>()[n],
                    is_valid ? arrivals[row].second : -1);
          if (is_valid) ++counts[static_cast<std::size_t>(arrivals[row].first)];
        }
        for (int rank = 0; rank < shape.num_ranks; ++rank) {
          EXPECT_EQ(tensors.num_recv_tokens_per_rank.as<std::int32_t>()[rank],
                    counts[static_cast<std::size_t>(rank)]);
          for (std::int64_t t = 0; t < r.own.num_tokens(); ++t) {
            const auto at = t * shape.num_ranks + rank;
            EXPECT_EQ(tensors.is_token_in_rank.as<std::uint8_t>()[at],
                      r.own.ranks_of(t).count(rank));
          }
        }
        r.buffer.combine(got.recv_x, got.handle);
        expect_invalid("the handle was combined, must be asked between dispatch and combine",
                       [&] { r.buffer.handle_tensors(got.handle); });
      }
    });
  }
}

}  // namespace
}  // namespace switchyard::deep_ep
