// SPDX-License-Identifier: Apache-2.0
//
// FlashInfer's calls, collectives and overlapped layers on GPUs give every bit that they give on
// CPUs. Ranks are threads, on GPU (rank mod number of GPUs).

#include <gtest/gtest.h>

#include "switchyard/collectives.h"

#include "compat/flashinfer/mnnvl_moe.h"
#include "compat/flashinfer/moe_alltoall.h"
#include "core/round_up.h"
#include "cuda/compat_place.h"
#include "cuda/cuda_graph.h"
#include "cuda/gpu.h"
#include "device/cuda_module.h"
#include "support/overlapped_layer.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard {
namespace {

using cuda::check_cuda;
using namespace test;

const bool is_prepared = (prepare_for_shared_gpus(), true);

// ---- FlashInfer

void run_two_sided(Place& place, const Group& group, const ViewBatch& own, const ViewShape& shape) {
  const std::vector<std::int32_t> numbers{group.rank(), 5};
  const TensorView x = place.put(own.x());
  const TensorView ids = place.put(own.ids());
  const TensorView ids32 = place.put(own.ids32());
  const TensorView weights = place.put(own.weights());
  const TensorView statics = place.put(TensorView::of(numbers.data(), {2}));
  flashinfer::MnnvlMoe moe(group, {.max_token_count_per_rank = shape.max_tokens + 2},
                           place.options());
  const flashinfer::MoEAlltoallPrepared got = moe.prepare_without_allgather(
      ids32, weights, statics, shape.max_tokens, 2, shape.num_experts, place.stream());
  place.keep("ids", got.expert_ids);
  place.keep("weights", got.scales);
  place.keep("statics", got.gathered_expert_statics);
  place.keep("sent", got.info.send_rank_count_cumsum);
  place.keep("received", got.info.recv_rank_count_cumsum);
  place.keep_values("rows", {got.info.local_token_allocation_count});
  const Tensor rows = moe.alltoallv(x, got.info, place.stream());
  const std::vector<Tensor> both = moe.alltoallv({ids, x}, got.info, place.stream());
  place.keep("one payload", rows);
  place.keep("first payload", both[0]);
  place.keep("second payload", both[1]);
  place.keep("combined", moe.alltoallv_combine(rows, got.info, place.stream()));
}

TEST(CompatFlashInferCudaTest, MnnvlMoeGivesTheBitsOfTheHost) {
  REQUIRE_GPU();
  for (const ViewShape& shape : test::view_shapes()) {
    compare(shape, [&](Place& place, const Group& group, const ViewBatch& own) {
      run_two_sided(place, group, own, shape);
    });
  }
}

void run_one_sided(Place& place, const Group& group, const ViewBatch& own, const ViewShape& shape) {
  constexpr std::int32_t kInvalid = -77;
  const TensorView x = place.put(own.x());
  const TensorView ids = place.put(own.ids32());
  const TensorView weights = place.put(own.weights());
  flashinfer::MoeAlltoAll moe(group, {shape.max_tokens + 3, shape.num_topk, shape.num_experts},
                              place.options());
  for (int round = 0; round < 2; ++round) {
    const std::string name = round == 0 ? "first" : "second";
    const std::vector<TensorView> got =
        moe.dispatch(ids, {x, ids, weights}, shape.max_tokens, place.stream(),
                     {.invalid_token_expert_id = kInvalid, .expert_id_payload_index = 1});
    const std::vector<std::int32_t> counts = place.read_i32(moe.recv_counts());
    place.keep(name + " counts", moe.recv_counts());
    place.set_rows(shape.max_tokens);
    place.keep_rows(name + " x", got[0], counts);
    place.keep(name + " ids", got[1]);  // the invalid ones too
    place.keep_rows(name + " weights", got[2], counts);
    place.keep(name + " combined", moe.combine(got[0], place.stream()));
  }
}

TEST(CompatFlashInferCudaTest, MoeAlltoAllGivesTheBitsOfTheHost) {
  REQUIRE_GPU();
  std::vector<ViewShape> shapes = test::view_shapes();
  shapes.push_back({4, 32, 6, 7, 64});
  shapes.push_back({3, 16, 10, 5, 64});
  for (const ViewShape& shape : shapes) {
    compare(shape, [&](Place& place, const Group& group, const ViewBatch& own) {
      run_one_sided(place, group, own, shape);
    });
  }
}

// ---- Collectives

TEST(CompatFlashInferCudaTest, CollectivesGiveTheBitsOfTheHost) {
  REQUIRE_GPU();
  const std::vector<std::int64_t> sizes{3, 0, 5};
  compare({3, 8, 3, 9, 64}, [&](Place& place, const Group& group, const ViewBatch&) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Tensor marks(DType::kU8, {sizes[rank], 3});
    std::memset(marks.data(), group.rank() + 1, marks.view().num_bytes());
    const TensorView own_marks = place.put(marks);
    const TensorView own_rows = place.put(test::random_bias(sizes[rank], 37, rank));
    const TensorView all_rows = place.put(test::random_bias(8, 37, 10 + rank));
    const TensorView equal_rows = place.put(test::random_bias(6, 24, 20 + rank));
    Collectives collectives(group, 6, place.options());
    for (int round = 0; round < 2; ++round) {
      const std::string name = round == 0 ? "first" : "second";
      const std::vector<Tensor> got =
          collectives.all_gatherv({own_marks, own_rows}, place.stream(), sizes);
      place.keep(name + " marks", got[0]);
      place.keep(name + " rows", got[1]);
      place.keep(name + " sum", collectives.reduce_scatterv(all_rows, place.stream(), sizes));
    }
    const Tensor gathered = collectives.all_gatherv(equal_rows, place.stream());
    place.keep("equal", gathered);
    place.keep("equal sum", collectives.reduce_scatterv(gathered, place.stream()));
  });
}

// ---- Micro-batches

TEST(CompatFlashInferCudaTest, AnOverlappedLayerHasTheBitsOfThePlainOne) {
  REQUIRE_GPU();
  for (const PrepareKind kind : {PrepareKind::kLowLatency, PrepareKind::kElasticDecode}) {
    for (const int num_ranks : {1, 2}) {
      const Reduce reduce =
          kind == PrepareKind::kLowLatency ? Reduce::kPerExpert : Reduce::kPerRank;
      run_ranks(num_ranks, [&](const Group& group) {
        const OverlapCase test{kind, schemes::kNone, reduce, 3};
        Place place(group.rank() % test::num_gpus());
        const std::vector<std::uint16_t> want = OverlappedLayer(group, test).run(0);
        OverlappedLayer layer(group, test, place.stream());
        group.barrier();
        EXPECT_EQ(layer.run(0), want);
        for (const int count : {1, 2, 3}) EXPECT_EQ(layer.run(count), want) << count;
        const Stream threads_own =
            Stream::default_of(Device::cuda(group.rank() % test::num_gpus()));
        EXPECT_TRUE(layer.kernel().stream_of(0, place.stream()) == place.stream());
        EXPECT_FALSE(layer.kernel().stream_of(0, threads_own) == threads_own);

        // One graph with all streams of the micro-batches.
        cudaStream_t stream = place.stream().get();
        test::CudaGraph graph(stream, [&] { layer.launch(3); });
        group.barrier();
        for (int round = 0; round < 2; ++round) {
          const TensorView& output = layer.output_view();
          cuda::check_cuda(cudaMemsetAsync(output.data(), 0xEE, output.num_bytes(), stream),
                           "memset");
          graph.replay(stream);
          EXPECT_EQ(layer.output(), want) << "replay " << round;
        }
        group.barrier();
        graph = {};
        group.barrier();
      });
    }
  }
}

}  // namespace
}  // namespace switchyard
