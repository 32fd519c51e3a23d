// SPDX-License-Identifier: Apache-2.0
//
// What DeepEP's test of its ElasticBuffer checks, with small sizes, and every field of the handle.

#include <gtest/gtest.h>

#include "compat/deep_ep/elastic_buffer.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard::deep_ep {
namespace {

using namespace test;

struct Rank {
  Rank(const Group& group, const ViewShape& of, bool allow_multiple_reduction = true)
      : shape(of),
        rank(group.rank()),
        batches(test::all_batches(of)),
        own(batches[static_cast<std::size_t>(group.rank())]),
        buffer(group, {of.max_tokens, allow_multiple_reduction}) {}

  ElasticDispatched dispatch(ElasticDispatchOptions options) {
    options.topk_weights = own.weights();
    return buffer.dispatch(own.x(), own.ids(), shape.num_experts, Stream::host(), options);
  }
  const ViewBatch& batch(int r) const { return batches[static_cast<std::size_t>(r)]; }

  ViewShape shape;
  int rank;
  std::vector<ViewBatch> batches;
  const ViewBatch& own;
  ElasticBuffer buffer;
};

std::int32_t i32_at(const Tensor& tensor, std::int64_t i) { return tensor.as<std::int32_t>()[i]; }

void expect_token(const Rank& r, const TensorView& rows, std::int64_t row, int source,
                  std::int64_t token) {
  EXPECT_EQ(bf16_at(rows, row * r.shape.hidden), static_cast<float>(source - 128));
  EXPECT_EQ(bf16_at(rows, (row + 1) * r.shape.hidden - 1), static_cast<float>(token));
}

// The metadata leads from every received token to its rows.
void check_metadata(const Rank& r, const ElasticDispatched& got) {
  const EPHandle& handle = *got.handle;
  const auto arrivals = test::arrivals_at(r.batches, r.rank);
  const std::int64_t columns = r.shape.num_topk + 2;
  std::vector<std::int32_t> ends(static_cast<std::size_t>(r.shape.num_ranks), 0);
  for (std::size_t n = 0; n < arrivals.size(); ++n) {
    const auto& [source, token] = arrivals[n];
    for (auto s = static_cast<std::size_t>(source); s < ends.size(); ++s) ++ends[s];
    const auto line = static_cast<std::int64_t>(n) * columns;
    EXPECT_EQ(i32_at(handle.recv_src_metadata, line),
              source * handle.num_max_tokens_per_rank + token);
    int highest = -1;
    for (int k = 0; k < r.shape.num_topk; ++k) {
      const int id = r.batch(source).id(token, k);
      const bool is_local = id >= 0 && r.shape.ownership().owner(id) == r.rank;
      if (is_local) highest = k;
      const std::int32_t row = i32_at(handle.recv_src_metadata, line + 2 + k);
      EXPECT_EQ(row >= 0, is_local && handle.do_expand);
      if (row < 0) continue;
      expect_token(r, got.recv_x, row, source, token);
      EXPECT_EQ(got.recv_topk_weights.as<float>()[row], r.batch(source).weight(token, k));
    }
    EXPECT_EQ(i32_at(handle.recv_src_metadata, line + 1), source * r.shape.num_topk + highest);
    if (!handle.do_expand) expect_token(r, got.recv_x, static_cast<std::int64_t>(n), source, token);
  }
  for (std::int64_t i = static_cast<std::int64_t>(arrivals.size()) * columns;
       i < handle.recv_src_metadata.view().num_elements(); ++i) {
    EXPECT_EQ(i32_at(handle.recv_src_metadata, i), -1);
  }
  EXPECT_EQ(std::vector<std::int32_t>(
                handle.psum_num_recv_tokens_per_scaleup_rank.as<std::int32_t>(),
                handle.psum_num_recv_tokens_per_scaleup_rank.as<std::int32_t>() + ends.size()),
            ends);
}

void check_counts(const Rank& r, const ElasticDispatched& got, bool is_synced) {
  const EPHandle& handle = *got.handle;
  const ExpertOwnership ownership = r.shape.ownership();
  std::int64_t start = 0;
  for (int e = 0; e < ownership.count(r.rank); ++e) {
    std::int32_t count = 0;
    for (const ViewBatch& batch : r.batches) {
      for (std::int64_t i = 0; i < batch.num_tokens() * r.shape.num_topk; ++i) {
        count += batch.ids().as<std::int64_t>()[i] == ownership.first(r.rank) + e;
      }
    }
    const std::int64_t a = handle.expert_alignment;
    const std::int64_t aligned = (count + a - 1) / a * a;
    EXPECT_EQ(i32_at(handle.num_unaligned_recv_tokens_per_expert, e), count);
    EXPECT_EQ(i32_at(handle.psum_num_recv_tokens_per_expert, e),
              handle.do_expand ? start + count : start + aligned);
    if (is_synced) {
      EXPECT_EQ(handle.num_recv_tokens_per_expert_list[static_cast<std::size_t>(e)], aligned);
    }
    start += aligned;
  }
  EXPECT_EQ(handle.num_recv_tokens_per_expert_list.empty(),
            !is_synced || ownership.count(r.rank) == 0);
  if (is_synced && handle.do_expand) {
    EXPECT_EQ(handle.num_expanded_tokens, start);
  }
}

// The slot of each token in the destination's buffer, as the destination computes it.
void check_slots(const Rank& r, const EPHandle& handle) {
  for (int dst = 0; dst < r.shape.num_ranks; ++dst) {
    std::int32_t place = 0;
    for (const auto& [source, token] : test::arrivals_at(r.batches, dst)) {
      if (source != r.rank) continue;
      int highest = -1;
      for (int k = 0; k < r.shape.num_topk; ++k) {
        const int id = r.own.id(token, k);
        if (id < 0 || r.shape.ownership().owner(id) != dst) continue;
        if (highest >= 0) {
          EXPECT_EQ(i32_at(handle.dst_buffer_slot_idx, token * r.shape.num_topk + highest), -1);
        }
        highest = k;
      }
      EXPECT_EQ(i32_at(handle.dst_buffer_slot_idx, token * r.shape.num_topk + highest),
                r.rank * handle.num_max_tokens_per_rank + place++);
    }
  }
}

// Two levels: a token's rows on each rank are summed and rounded; then biases and one partial sum
// per rank are added. Without the first level every choice is added by itself.
void check_combined(const Rank& r, const TensorView& combined, const std::vector<TensorView>& bias,
                    bool is_expanded, bool has_levels = true) {
  for (std::int64_t i = 0; i < combined.num_elements(); ++i) {
    const std::int64_t t = i / r.shape.hidden;
    const float x = bf16_at(r.own.x(), i);
    float sum = 0.0f;
    for (const TensorView& term : bias) sum += bf16_at(term, i);
    std::vector<int> rows(static_cast<std::size_t>(r.shape.num_ranks), 0);
    for (int k = 0; k < r.shape.num_topk; ++k) {
      if (r.own.id(t, k) < 0) continue;
      ++rows[static_cast<std::size_t>(r.shape.ownership().owner(r.own.id(t, k)))];
      if (!has_levels) sum += x;
    }
    // Partial sums differ by their number of rows; their order is that of each rank's highest k.
    for (int k = 0; k < r.shape.num_topk && has_levels; ++k) {
      if (r.own.id(t, k) < 0) continue;
      const int owner = r.shape.ownership().owner(r.own.id(t, k));
      bool is_last = true;
      for (int later = k + 1; later < r.shape.num_topk; ++later) {
        const int id = r.own.id(t, later);
        is_last = is_last && (id < 0 || r.shape.ownership().owner(id) != owner);
      }
      const int count = is_expanded ? rows[static_cast<std::size_t>(owner)] : 1;
      if (is_last) sum += f32_from_bf16(bf16_from_f32(x * static_cast<float>(count)));
    }
    EXPECT_EQ(combined.as<std::uint16_t>()[i], bf16_from_f32(sum)) << "element " << i;
  }
}

void check_weights(const Rank& r, const TensorView& weights) {
  for (std::int64_t i = 0; i < weights.num_elements(); ++i) {
    const std::int64_t t = i / r.shape.num_topk;
    const std::int64_t k = i % r.shape.num_topk;
    EXPECT_EQ(weights.as<float>()[i], r.own.id(t, k) >= 0 ? r.own.weight(t, k) : 0.0f);
  }
}

TEST(DeepEpElasticTest, HandlesRowsAndSumsAreThoseOfTheRouting) {
  for (const ViewShape& shape : test::view_shapes()) {
    for (int grid = 0; grid < 8; ++grid) {
      const bool is_expanded = grid % 2 == 1;
      const bool is_synced = grid / 2 % 2 == 0;
      run_ranks(shape.num_ranks, [&](const Group& group) {
        Rank r(group, shape);
        const ElasticDispatched got = r.dispatch({.expert_alignment = grid < 4 ? 1 : 4,
                                                  .do_expand = is_expanded,
                                                  .do_cpu_sync = is_synced,
                                                  .do_handle_copy = grid < 4});
        check_metadata(r, got);
        check_counts(r, got, is_synced);
        check_slots(r, *got.handle);
        const Tensor bias = test::random_bias(r.own.num_tokens(), shape.hidden, 3);
        const ElasticCombined combined = r.buffer.combine(got.recv_x, got.handle, Stream::host(),
                                                          got.recv_topk_weights, {bias, bias});
        check_combined(r, combined.combined_x, {bias, bias}, is_expanded);
        check_weights(r, combined.combined_topk_weights);
        const ElasticDispatched again =
            r.buffer.dispatch(r.own.x(), got.handle, Stream::host(), {},
                              is_expanded ? r.own.weights() : TensorView{});
        EXPECT_EQ(again.handle, got.handle);
        check_metadata(r, again);
        check_combined(r, r.buffer.combine(again.recv_x, again.handle).combined_x, {}, is_expanded);
      });
    }
  }
}

TEST(DeepEpElasticTest, EveryRowTravelsWithoutMultipleReduction) {
  run_ranks(3, [](const Group& group) {
    Rank r(group, {3, 7, 4, 6, 256}, false);
    const ElasticDispatched got = r.dispatch({.do_expand = true});
    test::expect_invalid("without allow_multiple_reduction", [&] {
      r.buffer.combine(got.recv_x, got.handle, Stream::host(), got.recv_topk_weights);
    });
    check_combined(r, r.buffer.combine(got.recv_x, got.handle).combined_x, {}, true, false);
  });
}

TEST(DeepEpElasticTest, ScalesTravelAlignedAndGapsAreZero) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {});
    Tensor codes(DType::kE4M3, {r.own.num_tokens(), 256});
    std::memset(codes.data(), 0x38, codes.view().num_bytes());
    // Column-major on the sender, because any strides are accepted.
    Tensor memory(DType::kF32, {2, r.own.num_tokens()});
    for (std::int64_t i = 0; i < memory.view().num_elements(); ++i) {
      memory.as<float>()[i] = static_cast<float>(100 * r.rank + i + 1);
    }
    const TensorView sf(memory.data(), DType::kF32, {r.own.num_tokens(), 2},
                        {1, r.own.num_tokens()});
    const ElasticDispatched got = r.buffer.dispatch(codes, r.own.ids(), 8, Stream::host(),
                                                    {.sf = sf,
                                                     .expert_alignment = 8,
                                                     .do_expand = true,
                                                     .do_zero_padding = true,
                                                     .use_tma_aligned_col_major_sf = true});
    const std::int64_t num_rows = got.recv_x.shape(0);
    ASSERT_EQ(num_rows % 8, 0);
    EXPECT_EQ(got.recv_sf.stride(0), 1);
    EXPECT_EQ(got.recv_sf.stride(1), num_rows);
    std::vector<float> want(static_cast<std::size_t>(num_rows), 0.0f);
    const Tensor& lines = got.handle->recv_src_metadata;
    for (std::int64_t n = 0; n < lines.shape(0); ++n) {
      const int source = i32_at(lines, n * 5) / 9;
      for (int k = 0; k < 3; ++k) {
        const std::int32_t row = i32_at(lines, n * 5 + 2 + k);
        if (row >= 0) {
          want[static_cast<std::size_t>(row)] =
              static_cast<float>(100 * source + i32_at(lines, n * 5) % 9 + 1);
        }
      }
    }
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const float scale = want[static_cast<std::size_t>(row)];
      EXPECT_EQ(got.recv_sf.as<float>()[row], scale);
      EXPECT_EQ(got.recv_x.as<std::uint8_t>()[row * 256 + 255], scale > 0 ? 0x38 : 0);
    }
  });
}

TEST(DeepEpElasticTest, SmallerBoundsAndBadArguments) {
  run_ranks(2, [](const Group& group) {
    Rank r(group, {2, 8, 3, 5, 128});
    expect_invalid("do_zero_padding", [&] { r.dispatch({.do_zero_padding = true}); });
    expect_invalid("expert_alignment is 0", [&] { r.dispatch({.expert_alignment = 0}); });
    expect_invalid("must be from 0 to max_tokens_per_rank",
                   [&] { r.dispatch({.num_max_tokens_per_rank = 6}); });
    expect_invalid("the handle is empty", [&] { r.buffer.combine(r.own.x(), nullptr); });
    const ElasticDispatched got = r.dispatch({.do_cpu_sync = false});
    EXPECT_EQ(got.recv_x.shape(0), 10);
    expect_invalid("must be absent unless it is expanded", [&] {
      r.buffer.dispatch(r.own.x(), got.handle, Stream::host(), {}, r.own.weights());
    });
    check_combined(r, r.buffer.combine(got.recv_x, got.handle).combined_x, {}, false);
  });
  EXPECT_EQ(ElasticBuffer::get_buffer_size_hint(8, 256, {4096}, 7168, 8) % (2 << 20), 0u);
}

}  // namespace
}  // namespace switchyard::deep_ep
