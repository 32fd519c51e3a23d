// SPDX-License-Identifier: Apache-2.0
//
// With exact experts, whole layers on GPUs return the same bits as ModularKernel on CPUs, for every
// class, also when replayed from a CUDA graph. Ranks are threads; with fewer GPUs than ranks some
// share a GPU.

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/device_modular_kernel.h"
#include "switchyard/modular_kernel.h"

#include "class_rank.h"
#include "core/random.h"
#include "gpu.h"
#include "plan/expert_ownership.h"
#include "quant/bf16.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::DeviceArena;
using test::Downloaded;
using test::expect_error;
using test::LayerInput;
using test::run_ranks;

const bool is_prepared = (test::load_kernels_eagerly(), true);

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
        arena_(std::size_t{32} << 20),
        on_gpu_gate_(arena_.upload(gate_)),
        cpu_(make_prepare_finalize(c.kind, group, c.config),
             make_exact_experts(weights_.view(), expert_options()), shared_on_cpu()),
        gpu_(make_device_prepare_finalize(
                 c.kind, group, c.config,
                 {.exchange = {.num_ctas = c.num_ctas, .timeout_ms = kTimeoutMs}}),
             make_device_experts(experts, weights_.view(), expert_options()),
             shared_on_gpu(experts)) {
    const std::int64_t num_tokens = c.config.max_tokens_per_rank;
    const std::int64_t bytes = bits_of(c.input) / 8;
    hidden_ = arena_.allocate(static_cast<std::size_t>(num_tokens * kHidden * bytes));
    ids_ = arena_.allocate(static_cast<std::size_t>(num_tokens * c.config.num_topk) * 8);
    routing_weights_ =
        arena_.allocate(static_cast<std::size_t>(num_tokens * c.config.num_topk) * 4);
    output_ = arena_.allocate(static_cast<std::size_t>(num_tokens * kHidden) * 2);
    group.barrier();
  }
  ~LayerRank() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  /// Copies input `call` to the GPU and returns the CPU's output for it.
  std::vector<std::uint16_t> feed(int call, std::int64_t num_tokens) {
    const LayerInput in = test::make_layer_input(
        {num_tokens, kHidden, c_.config.num_topk, c_.config.num_experts, 0.15, c_.input},
        static_cast<std::uint64_t>(1000 * call + 10 * group_.rank()));
    arena_.copy(hidden_, in.hidden.data(), in.hidden.view().num_bytes());
    arena_.copy(ids_, in.ids.data(), in.ids.view().num_bytes());
    arena_.copy(routing_weights_, in.weights.data(), in.weights.view().num_bytes());
    const Tensor output(DType::kBF16, {num_tokens, kHidden});
    cpu_.apply({in.hidden, in.ids, in.weights}, output);
    const auto* data = output.as<std::uint16_t>();
    return {data, data + num_tokens * kHidden};
  }

  void apply(std::int64_t num_tokens) { apply_part(0, num_tokens, 0, arena_.stream()); }
  /// Applies the layer to tokens [begin, end).
  void apply_part(std::int64_t begin, std::int64_t end, int micro_batch, Stream stream) {
    const std::int64_t count = end - begin;
    const std::int64_t num_topk = c_.config.num_topk;
    DevicePrepareArguments arguments;
    arguments.hidden =
        TensorView(hidden_ + begin * kHidden * bits_of(c_.input) / 8, c_.input, {count, kHidden});
    arguments.topk_ids = TensorView(ids_ + begin * num_topk * 8, DType::kI64, {count, num_topk});
    arguments.topk_weights =
        TensorView(routing_weights_ + begin * num_topk * 4, DType::kF32, {count, num_topk});
    arguments.micro_batch = micro_batch;
    gpu_.apply(arguments, TensorView(output_ + begin * kHidden * 2, DType::kBF16, {count, kHidden}),
               stream);
  }

  /// Collective, because a graph allocates memory.
  void capture(std::int64_t num_tokens) {
    graph_ = capture_part(0, num_tokens, 0, arena_.stream());
    group_.barrier();
  }
  cudaGraphExec_t capture_part(std::int64_t begin, std::int64_t end, int micro_batch,
                               Stream stream) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t instance = nullptr;
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    apply_part(begin, end, micro_batch, stream);
    check_cuda(cudaStreamEndCapture(stream.get(), &graph), "capture");
    check_cuda(cudaGraphInstantiate(&instance, graph, 0), "graph");
    check_cuda(cudaGraphDestroy(graph), "graph");
    check_cuda(cudaGraphUpload(instance, stream.get()), "graph");
    check_cuda(cudaStreamSynchronize(stream.get()), "graph");
    return instance;
  }
  void replay() { check_cuda(cudaGraphLaunch(graph_, arena_.stream().get()), "replay"); }

  std::vector<std::uint16_t> output(std::int64_t num_tokens) {
    arena_.wait();
    gpu_.check();
    const Downloaded rows(arena_, TensorView(output_, DType::kBF16, {num_tokens, kHidden}));
    return {rows.as<std::uint16_t>(), rows.as<std::uint16_t>() + num_tokens * kHidden};
  }

  DeviceModularKernel& kernel() { return gpu_; }
  const DeviceArena& arena() const { return arena_; }

 private:
  int owner() const { return c_.kind == PrepareKind::kLocal ? 0 : group_.rank(); }
  ExpertOptions expert_options() const {
    ExpertOptions options{c_.config.scheme};
    if (c_.config.scheme.needs_tensor_scale()) {
      options.intermediate_scale = TensorView::of(&intermediate_scale_, {1});
    }
    return options;
  }
  SharedExpert shared_on_cpu() const {
    if (c_.shared == Shared::kNone) return {};
    return {make_exact_experts(shared_.view()),
            c_.shared == Shared::kGated ? gate_.view() : TensorView(), c_.order};
  }
  DeviceSharedExpert shared_on_gpu(const char* experts) const {
    if (c_.shared == Shared::kNone) return {};
    return {make_device_experts(experts, shared_.view()),
            c_.shared == Shared::kGated ? on_gpu_gate_ : TensorView(), c_.order};
  }

  const LayerCase& c_;
  Group group_;
  ExpertOwnership ownership_;
  float intermediate_scale_ = 4.0f;
  Weights weights_;
  Weights shared_;
  Tensor gate_;
  DeviceArena arena_;
  TensorView on_gpu_gate_;
  ModularKernel cpu_;
  DeviceModularKernel gpu_;
  std::byte* hidden_ = nullptr;
  std::byte* ids_ = nullptr;
  std::byte* routing_weights_ = nullptr;
  std::byte* output_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
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
    for (const char* scheme : {"none", "fp8_block", "fp8_token", "nvfp4"}) {
      add({scheme, kind, 2, config_of(*scheme_from_name(scheme))});
    }
    add({"three_ranks", kind, 3, config_of(schemes::kFp8Block), Shared::kGated});
    add({"shared_first", kind, 2, config_of(schemes::kNone), Shared::kGated,
         SharedExpertsOrder::kNoOverlap});
    add({"f32", kind, 2, config_of(schemes::kFp8Block), Shared::kNone, SharedExpertsOrder::kNone,
         DType::kF32});
    add({"one_rank", kind, 1, config_of(schemes::kFp8Block), Shared::kNone});
    LayerCase columns{"columns", kind, 2, config_of(schemes::kFp8Block)};
    columns.config.scale_layout = ScaleLayout::kColumnMajor;
    add(columns);
    LayerCase few{"fewer_experts_than_ranks", kind, 3, config_of(schemes::kFp8Block)};
    few.config.num_experts = 2;
    few.config.num_topk = 2;
    add(few);
  }
  return all;
}

class DeviceModularKernelTest : public testing::TestWithParam<LayerCase> {};

// The number of tokens per rank changes from call to call.
std::int64_t tokens_of(int rank, int call) {
  constexpr std::int64_t kTokens[] = {21, 0, 5, 17};
  return kTokens[(rank + call) % 4];
}

TEST_P(DeviceModularKernelTest, EqualsTheCpuLayer) {
  const int num_gpus = test::num_gpus();
  REQUIRE_GPU();
  run_ranks(GetParam().num_ranks, [&](const Group& group) {
    const DeviceGuard guard(group.rank() % num_gpus);
    LayerRank rank(group, GetParam());
    for (int call = 0; call < 3; ++call) {
      const std::int64_t num_tokens = tokens_of(group.rank(), call);
      const std::vector<std::uint16_t> want = rank.feed(call, num_tokens);
      rank.apply(num_tokens);
      EXPECT_EQ(rank.output(num_tokens), want) << "call " << call << " rank " << group.rank();
    }
  });
}

TEST_P(DeviceModularKernelTest, ReplaysFromAGraph) {
  const int num_gpus = test::num_gpus();
  REQUIRE_GPU();
  run_ranks(GetParam().num_ranks, [&](const Group& group) {
    const DeviceGuard guard(group.rank() % num_gpus);
    LayerRank rank(group, GetParam());
    ASSERT_TRUE(rank.kernel().is_capturable());
    const std::int64_t num_tokens = tokens_of(group.rank(), 0);
    rank.capture(num_tokens);
    for (int call = 0; call < 4; ++call) {
      const std::vector<std::uint16_t> want = rank.feed(call, num_tokens);
      rank.replay();
      EXPECT_EQ(rank.output(num_tokens), want) << "replay " << call << " rank " << group.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, DeviceModularKernelTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

// Both micro-batches run at once: the second does not wait for the first.
TEST(DeviceModularKernelStreamsTest, MicroBatchesRunInStreamsOfTheirOwn) {
  const int num_gpus = test::num_gpus();
  REQUIRE_GPU();
  for (const PrepareKind kind : {PrepareKind::kLowLatency, PrepareKind::kElasticDecode,
                                 PrepareKind::kElasticPrefill, PrepareKind::kAllToAllOneSided}) {
    LayerCase c{"streams", kind, 2, config_of(schemes::kFp8Block), Shared::kGated};
    c.config.num_micro_batches = 2;
    c.num_ctas = 16;  // all of them fit on the GPU together
    run_ranks(2, [&](const Group& group) {
      const DeviceGuard guard(group.rank() % num_gpus);
      const OwnedStream second;
      LayerRank rank(group, c);
      const Stream first = rank.arena().stream();
      const cudaGraphExec_t graphs[] = {rank.capture_part(0, 10, 0, first),
                                        rank.capture_part(10, 21, 1, second.get())};
      group.barrier();
      for (int call = 0; call < 6; ++call) {
        const std::vector<std::uint16_t> want = rank.feed(call, 21);
        if (call % 2 == 0) {
          rank.apply_part(0, 10, 0, first);
          rank.apply_part(10, 21, 1, second.get());
        } else {
          check_cuda(cudaGraphLaunch(graphs[1], second.get()), "replay");
          check_cuda(cudaGraphLaunch(graphs[0], first.get()), "replay");
        }
        check_cuda(cudaStreamSynchronize(second.get()), "second");
        EXPECT_EQ(rank.output(21), want) << name_of(kind) << " call " << call;
      }
      for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
    });
  }
}

// Tensor cores sum in another order, so results are close but not equal.
TEST(DeviceModularKernelBlasTest, IsCloseToTheCpuLayer) {
  const int num_gpus = test::num_gpus();
  REQUIRE_GPU();
  for (const PrepareKind kind : {PrepareKind::kLowLatency, PrepareKind::kElasticDecode}) {
    const LayerCase c{"blas", kind, 2, config_of(schemes::kNone)};
    run_ranks(2, [&](const Group& group) {
      const DeviceGuard guard(group.rank() % num_gpus);
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

TEST(DeviceModularKernelErrorsTest, WrongCallsAreRefused) {
  REQUIRE_GPU();
  const LayerCase c{"errors", PrepareKind::kElasticDecode, 1, config_of(schemes::kNvfp4)};
  run_ranks(1, [&](const Group& group) {
    LayerRank rank(group, c);
    const DeviceArena& arena = rank.arena();
    DevicePrepareArguments arguments;
    arguments.hidden = TensorView(nullptr, DType::kBF16, {0, kHidden});
    arguments.topk_ids = TensorView(nullptr, DType::kI64, {0, 3});
    arguments.topk_weights = TensorView(nullptr, DType::kF32, {0, 3});
    const TensorView output(nullptr, DType::kBF16, {0, kHidden});
    const auto expect_refused = [&](const char* phrase, const DevicePrepareArguments& given,
                                    const TensorView& to) {
      expect_error(Errc::kInvalidArgument, phrase,
                   [&] { rank.kernel().apply(given, to, arena.stream()); });
    };
    expect_refused("output is", arguments, TensorView(nullptr, DType::kF32, {0, kHidden}));
    DevicePrepareArguments bad = arguments;
    bad.micro_batch = 1;
    expect_refused("micro_batch is 1, must be from 0 to 0", bad, output);
    bad = arguments;
    bad.weighs_in_place = true;
    expect_refused("weighs_in_place is set", bad, output);

    expect_error(Errc::kInvalidArgument, "must both be given",
                 [] { DeviceModularKernel(nullptr, nullptr); });
    PrepareFinalizeConfig tiles = c.config;
    tiles.scale_layout = ScaleLayout::kSwizzled;
    const Weights weights(0, tiles.num_experts, 100);
    expect_error(Errc::kNotSupported, "scale_layout is swizzled", [&] {
      DeviceModularKernel(make_device_prepare_finalize(c.kind, group, tiles),
                          make_device_experts("exact", weights.view()));
    });
  });
}

// The stages are observed in order, each with its result.
TEST(DeviceModularKernelStagesTest, AreObserved) {
  REQUIRE_GPU();
  const LayerCase c{"stages", PrepareKind::kLowLatency, 1, config_of(schemes::kNone)};
  run_ranks(1, [&](const Group& group) {
    LayerRank rank(group, c);
    std::vector<LayerStage> stages;
    std::int64_t num_rows = -1;
    rank.kernel().set_stage_observer([&](LayerStage stage) { stages.push_back(stage); });
    rank.kernel().set_inspector([&](const DevicePrepared& prepared, const TensorView& rows) {
      rank.arena().wait();
      num_rows = *Downloaded(rank.arena(), prepared.total_rows).as<std::int32_t>();
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
