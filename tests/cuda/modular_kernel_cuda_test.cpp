// SPDX-License-Identifier: Apache-2.0
//
// Whole layers on GPUs with shared experts, from CUDA graphs and in several streams return the bits
// of ModularKernel on CPUs, with exact experts. Plain calls of every class and scheme are cases of
// instruments/conformance. Ranks are threads; with fewer GPUs than ranks some share a GPU.

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/modular_kernel.h"

#include "class_rank.h"
#include "core/random.h"
#include "cuda_graph.h"
#include "device/cuda_module.h"
#include "gpu.h"
#include "plan/expert_ownership.h"
#include "quant/bf16.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;

const bool is_prepared = (prepare_for_shared_gpus(), true);

constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kIntermediate = 96;
constexpr std::int64_t kTimeoutMs = 10'000;

enum class Shared { kNone, kPlain, kGated };

struct LayerCase {
  std::string name;
  PrepareKind kind = PrepareKind::kLowLatency;
  int num_ranks = 2;
  PrepareFinalizeConfig config;
  Shared shared = Shared::kPlain;
  SharedExpertsOrder order = SharedExpertsOrder::kMkInternalOverlapped;
  DType input = DType::kBF16;
  std::int32_t num_ctas = 0;  ///< as ExchangeOptions
};

void PrintTo(const LayerCase& c, std::ostream* out) { *out << c.name; }

PrepareFinalizeConfig config_of(const QuantScheme& scheme) {
  PrepareFinalizeConfig config;
  config.num_experts = 11;
  config.num_topk = 3;
  config.hidden = kHidden;
  config.max_tokens_per_rank = 21;
  config.scheme = scheme;
  if (scheme.needs_tensor_scale()) config.static_scale = 300.0f;
  return config;
}

Tensor random_weights(std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  Tensor tensor(DType::kBF16, shape);
  for (std::int64_t i = 0; i < tensor.view().num_elements(); ++i) {
    const double x = random_normal(seed, static_cast<std::uint64_t>(i));
    tensor.as<std::uint16_t>()[i] = bf16_from_f32(static_cast<float>(x) * 0.1f);
  }
  return tensor;
}

/// Weights of consecutive experts; an expert has the same weights on whichever rank it is.
struct Weights {
  Weights(std::int64_t first, std::int64_t count, std::uint64_t seed)
      : gate(random_weights({count, kIntermediate, kHidden}, seed + 7 * first_of(first))),
        up(random_weights({count, kIntermediate, kHidden}, seed + 1 + 7 * first_of(first))),
        down(random_weights({count, kHidden, kIntermediate}, seed + 2 + 7 * first_of(first))) {}
  static std::uint64_t first_of(std::int64_t first) { return static_cast<std::uint64_t>(first); }
  ExpertWeights view() const { return {gate, up, down, {}, {}, {}}; }

  Tensor gate, up, down;
};

class LayerRank {
 public:
  LayerRank(const Group& group, const LayerCase& c, const char* experts = "exact")
      : c_(c),
        group_(group),
        ownership_{c.config.num_experts, c.kind == PrepareKind::kLocal ? 1 : group.size()},
        weights_(ownership_.first(owner()), ownership_.count(owner()), 100),
        shared_(0, 1, 200),
        gate_(random_weights({1, kHidden}, 300)),
        arena_(test::gpu_of(group.rank()), std::size_t{32} << 20),
        hidden_(arena_.allocate(c.input, {max_tokens(), kHidden})),
        ids_(arena_.allocate(DType::kI64, {max_tokens(), num_topk()})),
        routing_weights_(arena_.allocate(DType::kF32, {max_tokens(), num_topk()})),
        output_(arena_.allocate(DType::kBF16, {max_tokens(), kHidden})),
        gpu_gate_(arena_.upload(gate_)),
        cpu_(make_prepare_finalize(c.kind, group, c.config),
             make_experts("exact", weights_.view(), expert_options()),
             shared_expert("exact", Device::cpu())),
        gpu_(make_prepare_finalize(
                 c.kind, group, c.config,
                 {.device = device(), .timeout_ms = kTimeoutMs, .num_ctas = c.num_ctas}),
             make_experts(experts, weights_.view(), expert_options(), device()),
             shared_expert(experts, device())) {
    group.barrier();
  }

  /// Copies input `call` to the GPU and returns the CPU's output for it.
  std::vector<std::uint16_t> feed(int call, std::int64_t num_tokens) {
    const LayerInput in = test::make_layer_input(
        {num_tokens, kHidden, c_.config.num_topk, c_.config.num_experts, 0.15, c_.input},
        static_cast<std::uint64_t>(1000 * call + 10 * group_.rank()));
    arena_.copy(hidden_.data(), in.hidden.data(), in.hidden.view().num_bytes());
    arena_.copy(ids_.data(), in.ids.data(), in.ids.view().num_bytes());
    arena_.copy(routing_weights_.data(), in.weights.data(), in.weights.view().num_bytes());
    const Tensor output(DType::kBF16, {num_tokens, kHidden});
    cpu_.apply({in.hidden, in.ids, in.weights}, output);
    const auto* data = output.as<std::uint16_t>();
    return {data, data + num_tokens * kHidden};
  }

  void apply(std::int64_t num_tokens) { apply_part(0, num_tokens, 0, arena_.stream()); }
  /// Applies the layer to tokens [begin, end).
  void apply_part(std::int64_t begin, std::int64_t end, int micro_batch, Stream stream) {
    const auto part = [&](const TensorView& whole) {
      const std::int64_t row_bytes = whole.shape(1) * bits_of(whole.dtype()) / 8;
      return TensorView(whole.as<std::byte>() + begin * row_bytes, whole.dtype(),
                        {end - begin, whole.shape(1)}, whole.device());
    };
    PrepareArguments arguments{part(hidden_), part(ids_), part(routing_weights_)};
    arguments.micro_batch = micro_batch;
    gpu_.apply(arguments, part(output_), stream);
  }

  /// Collective, because a graph allocates memory.
  void capture(std::int64_t num_tokens) {
    graph_ = capture_part(0, num_tokens, 0, arena_.stream());
    group_.barrier();
  }
  CudaGraph capture_part(std::int64_t begin, std::int64_t end, int micro_batch, Stream stream) {
    return CudaGraph(stream.get(), [&] { apply_part(begin, end, micro_batch, stream); });
  }
  void replay() { graph_.replay(arena_.stream().get()); }

  std::vector<std::uint16_t> output(std::int64_t num_tokens) {
    arena_.wait();
    gpu_.check();
    const Downloaded rows(output_, arena_.stream());
    return {rows.as<std::uint16_t>(), rows.as<std::uint16_t>() + num_tokens * kHidden};
  }

  ModularKernel& kernel() { return gpu_; }
  const GpuArena& arena() const { return arena_; }

 private:
  int owner() const { return c_.kind == PrepareKind::kLocal ? 0 : group_.rank(); }
  ExpertOptions expert_options() const {
    ExpertOptions options{c_.config.scheme};
    if (c_.config.scheme.needs_tensor_scale()) {
      options.intermediate_scale = TensorView::of(&intermediate_scale_, {1});
    }
    return options;
  }
  SharedExpert shared_expert(const char* experts, Device device) const {
    if (c_.shared == Shared::kNone) return {};
    const TensorView& gate = device.is_cpu() ? gate_.view() : gpu_gate_;
    return {make_experts(experts, shared_.view(), {}, device),
            c_.shared == Shared::kGated ? gate : TensorView(), c_.order};
  }
  std::int64_t max_tokens() const { return c_.config.max_tokens_per_rank; }
  std::int64_t num_topk() const { return c_.config.num_topk; }
  Device device() const { return arena_.device(); }

  const LayerCase& c_;
  Group group_;
  ExpertOwnership ownership_;
  float intermediate_scale_ = 4.0f;
  Weights weights_;
  Weights shared_;
  Tensor gate_;
  GpuArena arena_;
  TensorView hidden_;
  TensorView ids_;
  TensorView routing_weights_;
  TensorView output_;
  TensorView gpu_gate_;
  ModularKernel cpu_;
  ModularKernel gpu_;
  CudaGraph graph_;
};

std::vector<LayerCase> cases() {
  std::vector<LayerCase> all;
  const auto add = [&](LayerCase c) {
    c.name = std::string(name_of(c.kind)) + "_" + c.name + "_" + std::to_string(all.size());
    all.push_back(std::move(c));
  };
  for (const PrepareKind kind :
       {PrepareKind::kLowLatency, PrepareKind::kElasticDecode, PrepareKind::kElasticPrefill,
        PrepareKind::kAllGather, PrepareKind::kAllToAll, PrepareKind::kAllToAllOneSided,
        PrepareKind::kLocal}) {
    for (const char* scheme : {"none", "nvfp4"}) {
      add({scheme, kind, 2, config_of(*scheme_from_name(scheme))});
    }
    LayerCase dynamic{"dynamic_scale", kind, 2, config_of(schemes::kFp8Tensor)};
    if (kind == PrepareKind::kElasticPrefill) dynamic.config.expert_alignment = 16;
    add(dynamic);
    add({"three_ranks", kind, 3, config_of(schemes::kFp8Block), Shared::kGated});
    add({"shared_first", kind, 2, config_of(schemes::kNone), Shared::kGated,
         SharedExpertsOrder::kNoOverlap});
    add({"f32", kind, 2, config_of(schemes::kFp8Block), Shared::kNone, SharedExpertsOrder::kNone,
         DType::kF32});
  }
  return all;
}

class ModularKernelCudaTest : public testing::TestWithParam<LayerCase> {};

// The number of tokens per rank changes from call to call.
std::int64_t tokens_of(int rank, int call) {
  constexpr std::int64_t kTokens[] = {21, 0, 5, 17};
  return kTokens[(rank + call) % 4];
}

TEST_P(ModularKernelCudaTest, CallsAndReplaysEqualTheCpuLayer) {
  REQUIRE_GPU();
  run_ranks(GetParam().num_ranks, [&](const Group& group) {
    const cuda::DeviceGuard guard(test::gpu_of(group.rank()).index);
    LayerRank rank(group, GetParam());
    for (int call = 4; call < 6; ++call) {
      const std::int64_t num_tokens = tokens_of(group.rank(), call + 1);
      const std::vector<std::uint16_t> want = rank.feed(call, num_tokens);
      rank.apply(num_tokens);
      EXPECT_EQ(rank.output(num_tokens), want) << "call " << call << " rank " << group.rank();
    }
    ASSERT_TRUE(rank.kernel().is_capturable());
    group.barrier();  // a capture allocates
    const std::int64_t num_tokens = tokens_of(group.rank(), 0);
    rank.capture(num_tokens);
    for (int call = 0; call < 4; ++call) {
      const std::vector<std::uint16_t> want = rank.feed(call, num_tokens);
      rank.replay();
      EXPECT_EQ(rank.output(num_tokens), want) << "replay " << call << " rank " << group.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, ModularKernelCudaTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

// Both micro-batches run at once: the second does not wait for the first.
TEST(ModularKernelStreamsTest, MicroBatchesRunInStreamsOfTheirOwn) {
  REQUIRE_GPU();
  for (const PrepareKind kind : {PrepareKind::kLowLatency, PrepareKind::kElasticDecode,
                                 PrepareKind::kElasticPrefill, PrepareKind::kAllToAllOneSided}) {
    LayerCase c{"streams", kind, 2, config_of(schemes::kFp8Block), Shared::kGated};
    c.config.num_micro_batches = 2;
    c.num_ctas = 16;  // all of them fit on the GPU together
    run_ranks(2, [&](const Group& group) {
      const cuda::DeviceGuard guard(test::gpu_of(group.rank()).index);
      const cuda::OwnedStream own_second;
      LayerRank rank(group, c);
      const Stream first = rank.arena().stream();
      const Stream second = Stream::cuda(own_second.get(), rank.arena().device().index);
      const std::size_t one = rank.kernel().workspace_bytes();
      const CudaGraph graphs[] = {rank.capture_part(0, 10, 0, first),
                                  rank.capture_part(10, 21, 1, second)};
      const bool is_shared = rank.kernel().prepare_finalize().is_shared_gpu();
      EXPECT_EQ(rank.kernel().workspace_bytes() > one, !is_shared) << "memory when it is used";
      group.barrier();
      for (int call = 0; call < 6; ++call) {
        const std::vector<std::uint16_t> want = rank.feed(call, 21);
        if (call % 2 == 0) {
          rank.apply_part(0, 10, 0, first);
          rank.apply_part(10, 21, 1, second);
        } else {
          graphs[1].replay(second.get());
          graphs[0].replay(first.get());
        }
        cuda::check_cuda(cudaStreamSynchronize(second.get()), "second");
        EXPECT_EQ(rank.output(21), want) << name_of(kind) << " call " << call;
      }
    });
  }
}

// Tensor cores sum in another order, so results are close but not equal.
TEST(CublasModularKernelTest, IsCloseToTheCpuLayer) {
  REQUIRE_GPU();
  for (const PrepareKind kind : {PrepareKind::kLowLatency, PrepareKind::kElasticDecode}) {
    const LayerCase c{"blas", kind, 2, config_of(schemes::kNone)};
    run_ranks(2, [&](const Group& group) {
      const cuda::DeviceGuard guard(test::gpu_of(group.rank()).index);
      std::unique_ptr<LayerRank> rank;
      try {
        rank = std::make_unique<LayerRank>(group, c, "cublas");
      } catch (const Error& error) {
        if (error.code() != Errc::kNotAvailable) throw;
        GTEST_SKIP() << error.what();
      }
      const std::vector<std::uint16_t> want = rank->feed(0, 21);
      rank->apply(21);
      const std::vector<std::uint16_t> got = rank->output(21);
      double error = 0;
      double norm = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double x = f32_from_bf16(want[i]);
        error += std::pow(f32_from_bf16(got[i]) - x, 2);
        norm += x * x;
      }
      EXPECT_LT(std::sqrt(error / norm), 1e-2) << name_of(kind);
    });
  }
}

TEST(ModularKernelCudaErrorsTest, PermutedRowsHaveNoSwizzledScales) {
  REQUIRE_GPU();
  run_ranks(1, [&](const Group& group) {
    PrepareFinalizeConfig tiles = config_of(schemes::kNvfp4);
    tiles.scale_layout = ScaleLayout::kSwizzled;
    const Weights weights(0, tiles.num_experts, 100);
    expect_error(Errc::kNotSupported, "scale_layout is swizzled", [&] {
      ModularKernel(
          make_prepare_finalize(PrepareKind::kElasticDecode, group, tiles, {.device = test::kGpu}),
          make_exact_experts(weights.view(), {}, test::kGpu));
    });
  });
}

// The stages are observed in order, each with its result.
TEST(ModularKernelStagesTest, AreObserved) {
  REQUIRE_GPU();
  const LayerCase c{"stages", PrepareKind::kLowLatency, 1, config_of(schemes::kNone)};
  run_ranks(1, [&](const Group& group) {
    LayerRank rank(group, c);
    std::vector<LayerStage> stages;
    std::int64_t num_rows = -1;
    rank.kernel().set_stage_observer([&](LayerStage stage) { stages.push_back(stage); });
    rank.kernel().set_inspector([&](const Prepared& prepared, const TensorView& rows) {
      rank.arena().wait();
      num_rows = *Downloaded(prepared.total_rows, rank.arena().stream()).as<std::int32_t>();
      EXPECT_EQ(rows.shape(0), prepared.experts.rows.shape(0));
    });
    rank.feed(0, 21);
    rank.apply(21);
    rank.output(21);
    EXPECT_THAT(stages, testing::ElementsAre(LayerStage::kPrepare, LayerStage::kExperts,
                                             LayerStage::kCombine, LayerStage::kShared,
                                             LayerStage::kCombine));
    EXPECT_GT(num_rows, 0);
  });
}

}  // namespace
}  // namespace switchyard
