// SPDX-License-Identifier: Apache-2.0
//
// The calls of other libraries on GPUs give every bit that they give on CPUs. Ranks are threads, on
// GPU (rank mod number of GPUs).

#include <gtest/gtest.h>

#include "compat/deep_ep/buffer.h"
#include "compat/deep_ep/elastic_buffer.h"
#include "compat/deep_ep/low_latency_buffer.h"
#include "compat/flashinfer/mnnvl_moe.h"
#include "compat/flashinfer/moe_alltoall.h"
#include "core/round_up.h"
#include "cuda/compat_place.h"
#include "cuda/cuda_graph.h"
#include "cuda/gpu.h"
#include "device/cuda_module.h"
#include "quant/scale_layout.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard {
namespace {

using cuda::check_cuda;
using namespace test;

const bool is_prepared = (prepare_for_shared_gpus(), true);

// Scales of valid rows, whatever their layout: [row, s] one by one.
void keep_scales(Place& place, const std::string& name, const TensorView& scales,
                 const std::vector<std::int32_t>& counts, std::int64_t capacity) {
  if (!scales.has_value()) return;
  const std::int64_t num_blocks = scales.shape(0);
  const bool is_tiled = scales.num_dims() == 6;
  const std::int64_t size = num_blocks == 0 ? 0 : scales.num_elements() / num_blocks;
  const Place::Bytes bytes =
      place.read(TensorView(scales.data(), scales.dtype(), {num_blocks * size}, place.device()));
  const std::size_t width = static_cast<std::size_t>(bits_of(scales.dtype())) / 8;
  Place::Bytes kept;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const std::int64_t num_scales = is_tiled ? scales.shape(2) * 4 : scales.shape(2);
    const ScaleGeometry tiles{ScaleLayout::kSwizzled, capacity, num_scales,
                              static_cast<std::int64_t>(width)};
    for (std::int64_t n = 0; n < counts[e]; ++n) {
      for (std::int64_t s = 0; s < num_scales; ++s) {
        const std::int64_t in_block =
            is_tiled ? tiles.index(n, s) : n * scales.stride(1) + s * scales.stride(2);
        const std::size_t at =
            static_cast<std::size_t>(static_cast<std::int64_t>(e) * size + in_block) * width;
        kept.insert(kept.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    bytes.begin() + static_cast<std::ptrdiff_t>(at + width));
      }
    }
  }
  place.set_rows(1);
  place.keep_rows(name, kept, {1});
}

// ---- DeepEP, low latency

struct LowLatencyCase {
  const char* name;
  deep_ep::LowLatencyDispatchOptions options;
};

std::vector<LowLatencyCase> low_latency_cases() {
  return {{"bf16", {.use_fp8 = false}},
          {"fp8", {}},
          {"fp8 round", {.round_scale = true}},
          {"ue8m0", {.round_scale = true, .use_ue8m0 = true}},
          {"nvfp4", {.use_fp8 = false, .use_nvfp4 = true}}};
}

void keep_received(Place& place, const std::string& name,
                   const deep_ep::LowLatencyDispatched& got) {
  const deep_ep::LowLatencyRows& rows = got.rows();
  const std::vector<std::int32_t> counts = place.read_i32(rows.recv_count);
  const std::int64_t capacity = rows.recv_x.shape(1);
  place.keep(name + " counts", rows.recv_count);
  place.set_rows(capacity);
  place.keep_rows(name + " rows", rows.recv_x, counts);
  if (rows.recv_topk_weights.has_value()) {
    place.keep_rows(name + " weights", rows.recv_topk_weights, counts);
    place.keep(name + " sources", rows.recv_src_rank);
  }
  keep_scales(place, name + " scales", rows.scales, counts, capacity);
  place.keep(name + " src_info", got.handle->src_info);
  place.keep(name + " layout_range", got.handle->layout_range);
}

void run_low_latency(Place& place, const Group& group, const ViewBatch& own, const ViewShape& shape,
                     const LowLatencyCase& test) {
  const float global_scale = 448.0f * 6.0f / 128.0f;
  const TensorView x = place.put(own.x());
  const TensorView ids = place.put(own.ids());
  const TensorView weights = place.put(own.weights());
  const std::int64_t num_local = shape.ownership().count(group.rank());
  const TensorView totals = place.blank(DType::kI32, {num_local});
  const TensorView out = place.blank(DType::kBF16, {own.num_tokens(), shape.hidden});
  deep_ep::LowLatencyDispatchOptions options = test.options;
  options.topk_weights = weights;
  options.sets_source_info = !options.use_fp8;
  options.cumulative_local_expert_recv_stats = totals;
  if (options.use_nvfp4) options.x_global_scale = place.put(TensorView::of(&global_scale, {1}));
  // Results, the same in both places.
  const Tensor result_rows =
      test::random_bias(num_local * shape.num_ranks * shape.max_tokens, shape.hidden,
                        static_cast<std::uint64_t>(group.rank()));
  const TensorView results = place.put(
      TensorView(result_rows.data(), DType::kBF16,
                 {num_local, std::int64_t{shape.num_ranks} * shape.max_tokens, shape.hidden}));

  deep_ep::LowLatencyBuffer buffer(group, place.options());
  for (const bool has_hook : {false, true}) {
    options.return_recv_hook = has_hook;
    const deep_ep::LowLatencyDispatched got = buffer.low_latency_dispatch(
        x, ids, shape.max_tokens, shape.num_experts, place.stream(), options);
    if (has_hook) {
      place.overwrite(x);  // was read at the send
      got.hook();
    }
    got.event.current_stream_wait(place.stream());
    buffer.set_source_info(got.handle, place.stream());
    const std::string name = has_hook ? "hook" : "plain";
    keep_received(place, name, got);
    // For a second combine of the handle.
    const TensorView memory = buffer.get_next_low_latency_combine_buffer(got.handle);
    const std::size_t num_bytes = memory.num_bytes();
    if (place.is_on_gpu()) {
      cuda::check_cuda(cudaMemcpyAsync(memory.data(), results.data(), num_bytes,
                                       cudaMemcpyDeviceToDevice, place.stream().get()),
                       "copy");
    } else if (num_bytes > 0) {
      std::memcpy(memory.data(), results.data(), num_bytes);
    }
    const deep_ep::LowLatencyCombined combined =
        buffer.low_latency_combine(results, ids, weights, got.handle, place.stream(),
                                   {.out = out, .return_recv_hook = has_hook});
    if (has_hook) {
      place.overwrite(results);
      combined.hook();
    }
    place.keep(name + " combined", combined.combined_x);
    const deep_ep::LowLatencyCombined again = buffer.low_latency_combine(
        memory, ids, weights, got.handle, place.stream(), {.zero_copy = true});
    place.keep(name + " again", again.combined_x);
    place.keep(name + " totals", totals);
  }
}

TEST(CompatCudaTest, LowLatencyGivesTheBitsOfTheHost) {
  REQUIRE_GPU();
  std::vector<ViewShape> shapes = test::view_shapes();
  shapes.push_back({3, 7, 3, 6, 1024});
  for (const ViewShape& shape : shapes) {
    for (const LowLatencyCase& test : low_latency_cases()) {
      SCOPED_TRACE(test.name);
      compare(shape, [&](Place& place, const Group& group, const ViewBatch& own) {
        run_low_latency(place, group, own, shape, test);
      });
    }
  }
}

TEST(CompatCudaTest, AHandleThatIsDroppedWithoutItsHookMakesRoom) {
  REQUIRE_GPU();
  const ViewShape shape;
  compare(shape, [&](Place& place, const Group& group, const ViewBatch& own) {
    const TensorView x = place.put(own.x());
    const TensorView ids = place.put(own.ids());
    deep_ep::LowLatencyBuffer buffer(group, place.options());
    for (int round = 0; round < 3; ++round) {
      (void)buffer.low_latency_dispatch(x, ids, shape.max_tokens, shape.num_experts, place.stream(),
                                        {.use_fp8 = false, .return_recv_hook = true});
    }
    const auto got = buffer.low_latency_dispatch(x, ids, shape.max_tokens, shape.num_experts,
                                                 place.stream(), {.use_fp8 = false});
    keep_received(place, "fourth", got);
  });
}

// Decode with fixed memory: captured once, replayed with other tokens.
TEST(CompatCudaTest, LowLatencyDecodeIsCapturedAndReplayed) {
  REQUIRE_GPU();
  const ViewShape shape{2, 8, 3, 9, 256};
  run_ranks(shape.num_ranks, [&](const Group& group) {
    const ViewBatch own(shape, group.rank());
    Place place(group.rank() % test::num_gpus());
    const TensorView x = place.put(own.x());
    const TensorView ids = place.put(own.ids());
    const TensorView weights = place.put(own.weights());
    const TensorView out = place.blank(DType::kBF16, {own.num_tokens(), shape.hidden});
    group.barrier();
    deep_ep::LowLatencyBuffer buffer(group, place.options());
    std::vector<deep_ep::LowLatencyDispatched> alive;  // the graph has addresses of its memory
    const auto layer = [&] {
      const auto got =
          buffer.low_latency_dispatch(x, ids, shape.max_tokens, shape.num_experts, place.stream(),
                                      {.use_fp8 = false, .return_recv_hook = true});
      got.hook();
      const auto combined =
          buffer.low_latency_combine(got.rows().recv_x, ids, weights, got.handle, place.stream(),
                                     {.out = out, .return_recv_hook = true});
      combined.hook();
      alive.push_back(got);
    };
    layer();
    const Place::Bytes want = place.read(out);
    cudaStream_t stream = place.stream().get();
    test::CudaGraph graph(stream, layer);
    group.barrier();
    for (int round = 0; round < 3; ++round) {
      cuda::check_cuda(cudaMemsetAsync(out.data(), 0xEE, out.num_bytes(), stream), "memset");
      graph.replay(stream);
      EXPECT_EQ(place.read(out), want) << "round " << round;
    }
    group.barrier();
    graph = {};
    group.barrier();
  });
}

// ---- DeepEP, high throughput

void keep_buffer_rows(Place& place, const std::string& name, const deep_ep::BufferDispatched& got,
                      std::int32_t num_rows) {
  place.set_rows(got.recv_x.shape(0));
  place.keep_rows(name + " rows", got.recv_x, {num_rows});
  if (got.recv_x_scales.has_value()) {
    place.keep_rows(name + " scales", got.recv_x_scales, {num_rows});
  }
}

void run_buffer(Place& place, const Group& group, const ViewBatch& own, const ViewShape& shape,
                bool is_exact) {
  const TensorView x = place.put(own.x());
  const TensorView ids = place.put(own.ids());
  const TensorView weights = place.put(own.weights());
  const TensorView bias = place.put(test::random_bias(own.num_tokens(), shape.hidden, 1));
  const TensorView other_bias = place.put(test::random_bias(own.num_tokens(), shape.hidden, 2));
  Tensor codes(DType::kE4M3, {own.num_tokens(), shape.hidden});
  Tensor scales(DType::kF32, {own.num_tokens(), cdiv<std::int64_t>(shape.hidden, 128)});
  std::memset(codes.data(), group.rank() + 1, codes.view().num_bytes());
  for (std::int64_t i = 0; i < scales.view().num_elements(); ++i) {
    scales.as<float>()[i] = static_cast<float>(i + 1);
  }
  const TensorView fp8 = place.put(codes);
  const TensorView fp8_scales = place.put(scales);
  deep_ep::Buffer buffer(group, {.max_tokens_per_rank = shape.max_tokens}, place.options());
  const deep_ep::DispatchLayout layout =
      buffer.get_dispatch_layout(ids, shape.num_experts, place.stream());
  place.keep("tokens per rank", layout.num_tokens_per_rank);
  place.keep("tokens per expert", layout.num_tokens_per_expert);
  place.keep("tokens in ranks", layout.is_token_in_rank);

  deep_ep::BufferDispatchOptions options;
  options.topk_weights = weights;
  if (!is_exact) options.num_worst_tokens = shape.num_ranks * shape.max_tokens;
  const deep_ep::BufferDispatched got =
      buffer.dispatch(x, ids, shape.num_experts, place.stream(), options);
  place.keep("ids", got.recv_topk_idx);
  place.keep("weights", got.recv_topk_weights);
  place.keep_values("tokens of experts", got.num_recv_tokens_per_expert_list);
  const auto arrivals = test::arrivals_at(test::all_batches(shape), group.rank());
  const auto num_rows = static_cast<std::int32_t>(arrivals.size());
  keep_buffer_rows(place, "fresh", got, num_rows);
  group.barrier();
  const TensorView results = place.put(got.recv_x);  // received rows end with their combine
  group.barrier();
  const deep_ep::BufferCombined combined = buffer.combine(
      got.recv_x, got.handle, place.stream(), got.recv_topk_weights, {bias, other_bias});
  place.keep("combined", combined.combined_x);
  place.keep("returned weights", combined.combined_topk_weights);
  // The handle serves again: another combine, and rows of two formats.
  place.keep("combined twice", buffer.combine(results, got.handle, place.stream()).combined_x);
  keep_buffer_rows(place, "again", buffer.dispatch(x, got.handle, place.stream()), num_rows);
  keep_buffer_rows(place, "fp8", buffer.dispatch(fp8, got.handle, place.stream(), fp8_scales),
                   num_rows);
}

TEST(CompatCudaTest, BufferGivesTheBitsOfTheHost) {
  REQUIRE_GPU();
  for (const ViewShape& shape : test::view_shapes()) {
    for (const bool is_exact : {false, true}) {
      compare(shape, [&](Place& place, const Group& group, const ViewBatch& own) {
        run_buffer(place, group, own, shape, is_exact);
      });
    }
  }
}

// ---- DeepEP, ElasticBuffer

void run_elastic(Place& place, const Group& group, const ViewBatch& own, const ViewShape& shape,
                 bool is_expanded, std::int64_t alignment, bool has_levels, bool is_exact) {
  const TensorView x = place.put(own.x());
  const TensorView ids = place.put(own.ids());
  const TensorView weights = place.put(own.weights());
  const TensorView bias = place.put(test::random_bias(own.num_tokens(), shape.hidden, 3));
  deep_ep::ElasticBuffer buffer(group, {shape.max_tokens, has_levels}, place.options());
  const deep_ep::ElasticDispatched got = buffer.dispatch(x, ids, shape.num_experts, place.stream(),
                                                         {.topk_weights = weights,
                                                          .expert_alignment = alignment,
                                                          .do_expand = is_expanded,
                                                          .do_cpu_sync = is_exact,
                                                          .do_zero_padding = is_expanded});
  const deep_ep::EPHandle& handle = *got.handle;
  place.keep("rank sums", handle.psum_num_recv_tokens_per_scaleup_rank);
  place.keep("expert sums", handle.psum_num_recv_tokens_per_expert);
  place.keep("counts", handle.num_unaligned_recv_tokens_per_expert);
  place.keep("topk_idx", handle.topk_idx);
  place.keep_values("received", {handle.num_recv_tokens});
  place.keep_values("tokens of experts", handle.num_recv_tokens_per_expert_list);
  place.keep_values("expanded", {handle.num_expanded_tokens});
  const auto arrivals = test::arrivals_at(test::all_batches(shape), group.rank());
  if (is_expanded) {  // with zeros between the rows
    place.keep("rows", got.recv_x);
    place.keep("weights", got.recv_topk_weights);
  } else {
    place.set_rows(got.recv_x.shape(0));
    const auto num_rows = static_cast<std::int32_t>(arrivals.size());
    place.keep_rows("rows", got.recv_x, {num_rows});
    place.keep_rows("weights", got.recv_topk_weights, {num_rows});
    place.keep("ids", got.recv_topk_idx);
  }
  const TensorView returned = has_levels ? got.recv_topk_weights : TensorView{};
  const deep_ep::ElasticCombined combined =
      buffer.combine(got.recv_x, got.handle, place.stream(), returned, {bias, bias});
  place.keep("combined", combined.combined_x);
  place.keep("returned weights", combined.combined_topk_weights);
  const deep_ep::ElasticDispatched again =
      buffer.dispatch(x, got.handle, place.stream(), {}, is_expanded ? weights : TensorView{});
  place.keep("combined again",
             buffer.combine(again.recv_x, again.handle, place.stream()).combined_x);
}

TEST(CompatCudaTest, ElasticBufferGivesTheBitsOfTheHost) {
  REQUIRE_GPU();
  for (const ViewShape& shape : test::view_shapes()) {
    for (const bool is_expanded : {false, true}) {
      for (const std::int64_t alignment : {1, 4}) {
        for (const bool is_exact : {false, true}) {
          compare(shape, [&](Place& place, const Group& group, const ViewBatch& own) {
            run_elastic(place, group, own, shape, is_expanded, alignment, true, is_exact);
          });
        }
      }
    }
  }
  const ViewShape shape{3, 7, 4, 6, 256};
  compare(shape, [&](Place& place, const Group& group, const ViewBatch& own) {
    run_elastic(place, group, own, shape, true, 1, false, false);
  });
}

// ---- What needs the host

TEST(CompatCudaTest, WhatNeedsHostCountsSaysSo) {
  REQUIRE_GPU();
  run_ranks(1, [](const Group& group) {
    const ViewShape shape{1, 4, 2, 5, 128};
    const ViewBatch own(shape, 0);
    Place place(0);
    const TensorView x = place.put(own.x());
    const TensorView ids = place.put(own.ids());
    const TensorView waits = place.blank(DType::kI64, {1});
    const auto refuses = [](const char* phrase, auto&& call) {
      test::expect_error(Errc::kNotSupported, phrase, call);
    };
    deep_ep::LowLatencyBuffer low_latency(group, place.options());
    refuses("only the host measures waits", [&] {
      low_latency.low_latency_dispatch(x, ids, 5, 4, place.stream(),
                                       {.dispatch_wait_recv_cost_stats = waits});
    });
    flashinfer::MoeAlltoAll moe(group, {5, 2, 4}, place.options());
    const TensorView ids32 = place.put(own.ids32());
    const auto got = moe.dispatch(ids32, {x}, 5, place.stream());
    refuses("read recv_counts()", [&] { (void)moe.num_received(); });
    (void)moe.combine(got[0], place.stream());
    test::expect_invalid("the stream is of cpu, must be of cuda:0",
                         [&] { low_latency.low_latency_dispatch(x, ids, 5, 4); });
    test::expect_invalid("on cpu, must lie on cuda:0", [&] {
      low_latency.low_latency_dispatch(own.x(), ids, 5, 4, place.stream());
    });
    cuda::check_cuda(cudaStreamSynchronize(place.stream().get()), "wait");
  });
}

}  // namespace
}  // namespace switchyard
