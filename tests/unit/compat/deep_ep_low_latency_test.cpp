// SPDX-License-Identifier: Apache-2.0
//
// What DeepEP's test of its low-latency calls checks, with small sizes.

#include <cmath>

#include <gtest/gtest.h>

#include "compat/deep_ep/low_latency_buffer.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard::deep_ep {
namespace {

using test::bf16_at;
using test::run_ranks;
using test::ViewBatch;
using test::ViewShape;

// One rank of a group with its own batch.
struct Rank {
  Rank(const Group& group, const ViewShape& of)
      : shape(of),
        rank(group.rank()),
        batches(test::all_batches(of)),
        own(batches[static_cast<std::size_t>(group.rank())]),
        buffer(group) {}

  LowLatencyDispatched dispatch(const LowLatencyDispatchOptions& options) {
    return buffer.low_latency_dispatch(own.x(), own.ids(), shape.max_tokens, shape.num_experts,
                                       Stream::host(), options);
  }
  LowLatencyCombined combine(const TensorView& x, const LowLatencyDispatched& dispatched,
                             const LowLatencyCombineOptions& options = {}) {
    return buffer.low_latency_combine(x, own.ids(), own.weights(), dispatched.handle,
                                      Stream::host(), options);
  }

  ViewShape shape;
  int rank;
  std::vector<ViewBatch> batches;
  const ViewBatch& own;
  LowLatencyBuffer buffer;
};

constexpr LowLatencyDispatchOptions kBf16{.use_fp8 = false};

// Tokens of source `s` that name the expert.
std::set<std::int32_t> senders(const ViewBatch& batch, const ViewShape& shape, int expert) {
  std::set<std::int32_t> tokens;
  for (std::int64_t t = 0; t < batch.num_tokens(); ++t) {
    for (int k = 0; k < shape.num_topk; ++k) {
      if (batch.id(t, k) == expert) tokens.insert(static_cast<std::int32_t>(t));
    }
  }
  return tokens;
}

void check_segments(const Rank& r, const LowLatencyDispatched& got) {
  const ExpertOwnership ownership = r.shape.ownership();
  const std::int64_t capacity = r.shape.num_ranks * r.shape.max_tokens;
  for (int e = 0; e < ownership.count(r.rank); ++e) {
    std::int64_t total = 0;
    for (int s = 0; s < r.shape.num_ranks; ++s) {
      const std::set<std::int32_t> want =
          senders(r.batches[static_cast<std::size_t>(s)], r.shape, ownership.first(r.rank) + e);
      const std::int64_t range =
          got.handle->layout_range.as<std::int64_t>()[e * r.shape.num_ranks + s];
      const std::int64_t count = range & 0xFFFFFFFF;
      const std::int64_t begin = e * capacity + (range >> 32);
      const auto* info = got.handle->src_info.as<std::int32_t>() + begin;
      EXPECT_EQ(std::set<std::int32_t>(info, info + count), want);
      EXPECT_EQ(count, static_cast<std::int64_t>(want.size()));
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = (begin + i) * r.shape.hidden;
        EXPECT_EQ(bf16_at(got.rows().recv_x, row), static_cast<float>(s - 128));
        EXPECT_EQ(bf16_at(got.rows().recv_x, row + r.shape.hidden - 1),
                  static_cast<float>(info[i]));
      }
      total += count;
    }
    EXPECT_EQ(got.rows().recv_count.as<std::int32_t>()[e], total);
  }
}

// With identity experts, the output is the token times the sum of its weights.
void check_identity(const Rank& r, const TensorView& combined) {
  for (std::int64_t t = 0; t < r.own.num_tokens(); ++t) {
    for (std::int64_t h : {std::int64_t{0}, r.shape.hidden - 1}) {
      float sum = 0.0f;
      for (int k = 0; k < r.shape.num_topk; ++k) {
        if (r.own.id(t, k) >= 0)
          sum = std::fma(r.own.weight(t, k), r.own.element(r.rank, t, h), sum);
      }
      EXPECT_EQ(combined.as<std::uint16_t>()[t * r.shape.hidden + h], bf16_from_f32(sum));
    }
  }
}

TEST(DeepEpLowLatencyTest, RowsSegmentsAndSumsAreThoseOfTheRouting) {
  for (const ViewShape& shape : test::view_shapes()) {
    run_ranks(shape.num_ranks, [&](const Group& group) {
      Rank r(group, shape);
      const LowLatencyDispatched got = r.dispatch(kBf16);
      check_segments(r, got);
      const LowLatencyCombined first = r.combine(got.rows().recv_x, got);
      check_identity(r, first.combined_x);
      // The handle can be used again, also with other rows.
      const Tensor zero(DType::kBF16,
                        {got.rows().recv_x.shape(0), got.rows().recv_x.shape(1), shape.hidden});
      const LowLatencyCombined second = r.combine(zero, got);
      for (std::int64_t i = 0; i < second.combined_x.num_elements(); ++i) {
        EXPECT_EQ(bf16_at(second.combined_x, i), 0.0f);
      }
    });
  }
}

TEST(DeepEpLowLatencyTest, HookAndZeroCopyGiveTheSameBits) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    const LowLatencyDispatched plain = r.dispatch(kBf16);
    const auto want_rows = test::bytes_of(plain.rows().recv_count);
    const auto want = test::bytes_of(r.combine(plain.rows().recv_x, plain).combined_x);

    LowLatencyDispatchOptions options = kBf16;
    options.return_recv_hook = true;
    const LowLatencyDispatched got = r.dispatch(options);
    const TensorView places = got.rows().recv_x;
    test::expect_error(Errc::kInvalidArgument, "has received nothing",
                       [&] { r.combine(places, got); });
    got.hook();
    EXPECT_EQ(got.rows().recv_x.data(), places.data());
    test::expect_error(Errc::kInvalidArgument, "must be called once", [&] { got.hook(); });
    EXPECT_EQ(test::bytes_of(got.rows().recv_count), want_rows);
    const TensorView memory = r.buffer.get_next_low_latency_combine_buffer(got.handle);
    std::memcpy(memory.data(), got.rows().recv_x.data(), memory.num_bytes());
    test::expect_error(Errc::kInvalidArgument, "zero_copy is set",
                       [&] { r.combine(got.rows().recv_x, got, {.zero_copy = true}); });
    const Tensor out(DType::kBF16, {r.own.num_tokens(), r.shape.hidden});
    const LowLatencyCombined combined =
        r.combine(memory, got, {.zero_copy = true, .out = out, .return_recv_hook = true});
    combined.hook();
    EXPECT_EQ(test::bytes_of(out), want);
  });
}

// DeepEP reads x at the send, so its callers reuse the memory before the hook has run.
TEST(DeepEpLowLatencyTest, InputsMayBeOverwrittenBeforeTheHook) {
  for (const ViewShape& shape : test::view_shapes()) {
    run_ranks(shape.num_ranks, [&](const Group& group) {
      Rank r(group, shape);
      LowLatencyDispatchOptions options = kBf16;
      options.return_recv_hook = true;
      const Tensor x = copy_to(r.own.x(), Device::cpu());
      const LowLatencyDispatched got = r.buffer.low_latency_dispatch(
          x, r.own.ids(), shape.max_tokens, shape.num_experts, Stream::host(), options);
      std::memset(x.data(), 0x7F, x.view().num_bytes());
      got.hook();
      check_segments(r, got);
      const Tensor results = copy_to(got.rows().recv_x, Device::cpu());
      for (int repeat = 0; repeat < 2; ++repeat) {  // a second combine reopens the handle
        const Tensor rows = copy_to(results, Device::cpu());
        const LowLatencyCombined combined = r.combine(rows, got, {.return_recv_hook = true});
        std::memset(rows.data(), 0x7F, rows.view().num_bytes());
        combined.hook();
        check_identity(r, combined.combined_x);
      }
    });
  }
}

TEST(DeepEpLowLatencyTest, WideRowsAreNotRounded) {
  run_ranks(1, [](const Group& group) {
    Rank r(group, {1, 4, 2, 5, 256});
    const Tensor wide(DType::kF32, {r.own.num_tokens(), r.shape.hidden});
    const auto dispatch = [&](const LowLatencyDispatchOptions& options) {
      return r.buffer.low_latency_dispatch(wide, r.own.ids(), r.shape.max_tokens,
                                           r.shape.num_experts, Stream::host(), options);
    };
    test::expect_error(Errc::kInvalidArgument, "x is f32 [5, 256], must be bf16",
                       [&] { dispatch(kBf16); });
    const LowLatencyDispatched got = dispatch({});
    const TensorView& rows = got.rows().recv_x;
    const Tensor results(DType::kF32, {rows.shape(0), rows.shape(1), r.shape.hidden});
    test::expect_error(Errc::kInvalidArgument, "must be bf16, as which rows travel",
                       [&] { r.combine(results, got); });
  });
}

TEST(DeepEpLowLatencyTest, Fp8RowsKeepTheirConstantAndScalesAreTransposed) {
  for (const bool is_packed : {false, true}) {
    run_ranks(3, [&](const Group& group) {
      Rank r(group, {3, 7, 3, 6, 1024});
      const LowLatencyDispatched got =
          r.dispatch({.round_scale = is_packed, .use_ue8m0 = is_packed});
      const TensorView& rows = got.rows().recv_x;
      const TensorView& scales = got.rows().scales;
      const std::int64_t capacity = 3 * r.shape.max_tokens;
      const std::int64_t num_scales = is_packed ? 2 : 8;
      ASSERT_EQ(rows.dtype(), DType::kE4M3);
      ASSERT_EQ(scales.dtype(), is_packed ? DType::kI32 : DType::kF32);
      ASSERT_EQ(scales.shape(2), num_scales);
      EXPECT_EQ(scales.stride(0), num_scales * capacity);
      EXPECT_EQ(scales.stride(1), 1);
      EXPECT_EQ(scales.stride(2), capacity);
      for (std::int64_t e = 0; e < rows.shape(0); ++e) {
        for (std::int64_t i = 0; i < got.rows().recv_count.as<std::int32_t>()[e]; ++i) {
          const std::int64_t at = e * scales.stride(0) + i;
          const float scale = is_packed
                                  ? std::ldexp(1.0f, (scales.as<std::int32_t>()[at] & 0xFF) - 127)
                                  : scales.as<float>()[at];
          const auto* codes = rows.as<std::uint8_t>() + (e * capacity + i) * r.shape.hidden;
          EXPECT_EQ(std::set<std::uint8_t>(codes, codes + 896).size(), 1u);
          const float value = reference::f32_from_e4m3(codes[0]) * scale;
          EXPECT_NEAR(value, -127.0f, is_packed ? 4.0f : 1.001f);  // -128, -127 or -126
        }
      }
    });
  }
}

TEST(DeepEpLowLatencyTest, Nvfp4RowsComeWithTilesWeightsAndSources) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    const float global_scale = 448.0f * 6.0f / 128.0f;
    const LowLatencyDispatched got =
        r.dispatch({.use_fp8 = false,
                    .use_nvfp4 = true,
                    .x_global_scale = TensorView::of(&global_scale, {1}),
                    .topk_weights = r.own.weights()});
    const LowLatencyRows& rows = got.rows();
    EXPECT_EQ(rows.recv_x.describe(), "u8 [4, 18, 128]");
    EXPECT_EQ(rows.scales.describe(), "e4m3 [4, 1, 4, 32, 4, 4]");
    ASSERT_EQ(rows.recv_topk_weights.describe(), "f32 [4, 18]");
    for (std::int64_t e = 0; e < 4; ++e) {
      for (std::int64_t i = e * 18; i < e * 18 + rows.recv_count.as<std::int32_t>()[e]; ++i) {
        const auto source = static_cast<std::size_t>(rows.recv_src_rank.as<std::int32_t>()[i]);
        const std::int32_t token = got.handle->src_info.as<std::int32_t>()[i];
        int k = 0;
        while (r.batches[source].id(token, k) != r.rank * 4 + e) ++k;
        EXPECT_EQ(rows.recv_topk_weights.as<float>()[i], r.batches[source].weight(token, k));
      }
    }
  });
}

TEST(DeepEpLowLatencyTest, SourcesCanBeSetLater) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    const LowLatencyDispatched got = r.dispatch({.use_fp8 = false, .sets_source_info = false});
    EXPECT_FALSE(got.handle->src_info.view().has_value());
    r.buffer.set_source_info(got.handle);
    check_segments(r, got);
    r.combine(got.rows().recv_x, got);
    r.buffer.set_source_info(got.handle);  // they are set

    const LowLatencyDispatched hooked =
        r.dispatch({.use_fp8 = false, .return_recv_hook = true, .sets_source_info = false});
    r.buffer.set_source_info(hooked.handle);
    hooked.hook();
    check_segments(r, hooked);
    r.combine(hooked.rows().recv_x, hooked);

    // Ranks that were given out stay where they are.
    const LowLatencyDispatched weighted =
        r.dispatch({.use_fp8 = false, .topk_weights = r.own.weights(), .sets_source_info = false});
    const void* ranks = weighted.rows().recv_src_rank.data();
    r.buffer.set_source_info(weighted.handle);
    EXPECT_EQ(weighted.rows().recv_src_rank.data(), ranks);
    EXPECT_NE(weighted.handle->src_info.data(), ranks);
    check_segments(r, weighted);
    r.combine(weighted.rows().recv_x, weighted);

    const LowLatencyDispatched late = r.dispatch({.use_fp8 = false, .sets_source_info = false});
    r.combine(late.rows().recv_x, late);
    test::expect_error(Errc::kInvalidArgument, "the handle was combined",
                       [&] { r.buffer.set_source_info(late.handle); });
    test::expect_error(Errc::kInvalidArgument, "the handle was combined",
                       [&] { r.buffer.set_source_info(late.handle); });
  });
}

TEST(DeepEpLowLatencyTest, AThirdHandleIsAnErrorUntilOneIsCombinedOrDropped) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    LowLatencyDispatched first = r.dispatch(kBf16);
    const LowLatencyDispatched second = r.dispatch({});  // another exchange: both count
    test::expect_error(Errc::kInvalidArgument, "2 handles wait for their combine",
                       [&] { r.dispatch(kBf16); });
    const LowLatencyCombined combined = r.combine(first.rows().recv_x, first);
    check_identity(r, combined.combined_x);
    for (int i = 0; i < 3; ++i) {
      const LowLatencyDispatched dropped = r.dispatch(kBf16);
      check_segments(r, dropped);
    }
  });
}

TEST(DeepEpLowLatencyTest, StatisticsAddUp) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    std::vector<std::int32_t> received(4, 5);
    std::vector<std::int64_t> waited(2, 3);
    LowLatencyDispatchOptions options = kBf16;
    options.cumulative_local_expert_recv_stats = TensorView::of(received.data(), {4});
    options.dispatch_wait_recv_cost_stats = TensorView::of(waited.data(), {2});
    const LowLatencyDispatched got = r.dispatch(options);
    for (std::size_t e = 0; e < 4; ++e) {
      EXPECT_EQ(received[e], 5 + got.rows().recv_count.as<std::int32_t>()[e]);
    }
    EXPECT_GE(waited[0] + waited[1], 6);
  });
}

TEST(DeepEpLowLatencyTest, BadArgumentsAreNamedAndNothingIsLost) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    const auto refuses = [](const char* phrase, auto&& call) {
      test::expect_error(Errc::kInvalidArgument, phrase, call);
    };
    refuses("must come with round_scale", [&] { r.dispatch({.use_ue8m0 = true}); });
    refuses("use_fp8 and use_nvfp4", [&] { r.dispatch({.use_nvfp4 = true}); });
    refuses("async_finish and return_recv_hook",
            [&] { r.dispatch({.async_finish = true, .return_recv_hook = true}); });
    const LowLatencyDispatched got = r.dispatch(kBf16);
    test::expect_error(Errc::kNotSupported, "use_logfmt",
                       [&] { r.combine(got.rows().recv_x, got, {.use_logfmt = true}); });
    const auto refuses_masks = [](const char* phrase, auto&& call) {
      test::expect_error(Errc::kNotSupported, phrase, call);
    };
    refuses_masks("low_latency_update_mask_buffer: ranks cannot be masked",
                  [&] { r.buffer.low_latency_update_mask_buffer(0, true); });
    refuses_masks("low_latency_query_mask_buffer: ranks cannot be masked",
                  [&] { r.buffer.low_latency_query_mask_buffer({}); });
    refuses_masks("low_latency_clean_mask_buffer: ranks cannot be masked",
                  [&] { r.buffer.low_latency_clean_mask_buffer(); });
    refuses("x is f32 [1]", [&] {
      const float one = 1.0f;
      r.combine(TensorView::of(&one, {1}), got);
    });
    refuses("must be the ids of the dispatch", [&] {
      const Tensor other(DType::kI64, {r.own.num_tokens(), r.shape.num_topk});
      r.buffer.low_latency_combine(got.rows().recv_x, other, r.own.weights(), got.handle);
    });
    refuses("the handle is empty", [&] {
      r.buffer.low_latency_combine(got.rows().recv_x, r.own.ids(), r.own.weights(), nullptr);
    });
    r.buffer.clean_low_latency_buffer(r.shape.max_tokens, r.shape.hidden, r.shape.num_experts);
    check_identity(r, r.combine(got.rows().recv_x, got).combined_x);
  });
}

TEST(DeepEpLowLatencyTest, SizeHintIsDeepEpsFormula) {
  // Dispatch message 16 + 2 x 7168, combine message 224 + 14336; 288 x 128 of the larger one twice,
  // plus 1152 bytes of signals; all of it twice, rounded up to the next larger multiple of 128.
  const std::size_t hint = LowLatencyBuffer::get_low_latency_rdma_size_hint(128, 7168, 8, 288);
  EXPECT_EQ(hint, std::size_t{2} * (2 * 288 * 128 * 14560 + 1152) + 128);
  test::expect_error(Errc::kInvalidArgument, "overflows", [] {
    LowLatencyBuffer::get_low_latency_rdma_size_hint(std::int64_t{1} << 40, std::int64_t{1} << 40,
                                                     8, 1 << 20);
  });
  EXPECT_GT(LowLatencyBuffer::memory(128, 7168, 288, 8, {}, 8, 0).window_bytes, 0u);
}

}  // namespace
}  // namespace switchyard::deep_ep
