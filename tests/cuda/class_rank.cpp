// SPDX-License-Identifier: Apache-2.0

#include "class_rank.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "core/random.h"
#include "plan/id_tensor.h"
#include "quant/scalar.h"

namespace switchyard::test {
namespace {

constexpr std::int64_t kTimeoutMs = 10'000;
constexpr std::size_t kArenaBytes = std::size_t{64} << 20;

// Fills with values from many binades.
void fill(void* to, DType dtype, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    const auto x = static_cast<float>(random_normal(seed, n));
    scalar::store(to, dtype, i, x * static_cast<float>(1 << random_bits(seed + 1, n) % 5));
  }
}

std::int64_t num_rows_of(const TensorView& rows) {
  return rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1) : rows.shape(0);
}

// Odd calls are split.
Prepared prepare(PrepareFinalize& object, const PrepareArguments& arguments, int call,
                 Stream stream) {
  if (call % 2 == 0) return object.prepare(arguments, stream);
  const Pending<Prepared> pending = object.prepare_async(arguments, stream);
  pending.hook();
  return pending.receiver();
}

}  // namespace

LayerInput make_layer_input(const LayerInputShape& shape, std::uint64_t seed) {
  LayerInput in{Tensor(shape.dtype, {shape.num_tokens, shape.hidden}),
                Tensor(shape.ids, {shape.num_tokens, shape.num_topk}),
                Tensor(DType::kF32, {shape.num_tokens, shape.num_topk})};
  fill(in.hidden.data(), shape.dtype, shape.num_tokens * shape.hidden, seed);
  const IdTensor ids("make_layer_input", "ids", in.ids);
  for (std::int64_t t = 0; t < shape.num_tokens; ++t) {
    std::vector<bool> used(static_cast<std::size_t>(shape.num_experts));
    for (std::int64_t k = 0; k < shape.num_topk; ++k) {
      const auto at = static_cast<std::uint64_t>(t * shape.num_topk + k);
      auto id = static_cast<std::int64_t>(random_bits(seed + 2, at) %
                                          static_cast<std::uint64_t>(shape.num_experts));
      while (used[static_cast<std::size_t>(id)]) id = (id + 1) % shape.num_experts;
      used[static_cast<std::size_t>(id)] = true;
      const bool is_none = random_uniform(seed + 3, at) < shape.none_share;
      ids.set(static_cast<std::int64_t>(at), is_none ? -1 : id);
      in.weights.as<float>()[at] = static_cast<float>(random_uniform(seed + 4, at));
    }
  }
  return in;
}

ClassRank::ClassRank(const Group& group, const ClassCase& c)
    : c_(c),
      rank_(group.rank()),
      arena_(gpu_of(group.rank()), kArenaBytes),
      cpu_(make_prepare_finalize(c.kind, group, c.config)),
      gpu_(make_prepare_finalize(c.kind, group, c.config,
                                 {.device = arena_.device(), .timeout_ms = kTimeoutMs})) {
  group.barrier();
}

bool ClassRank::is_grouped() const {
  return c_.kind == PrepareKind::kLowLatency || c_.kind == PrepareKind::kElasticPrefill;
}

void ClassRank::run() {
  for (int call = 0; call < c_.num_calls && !testing::Test::HasFatalFailure(); ++call) {
    run_call(call);
  }
}

PrepareArguments ClassRank::on_gpu(const PrepareArguments& host) {
  PrepareArguments arguments = host;
  arguments.hidden = arena_.upload(host.hidden);
  arguments.topk_ids = arena_.upload(host.topk_ids);
  arguments.topk_weights = arena_.upload(host.topk_weights);
  return arguments;
}

void ClassRank::run_call(int call) {
  arena_.clear();
  const auto turn = static_cast<std::size_t>(rank_ + call) % c_.num_tokens.size();
  const PrepareFinalizeConfig& config = c_.config;
  const LayerInput in =
      make_layer_input({c_.num_tokens[turn], config.hidden, config.num_topk, config.num_experts,
                        0.15, DType::kBF16, call % 2 == 0 ? DType::kI64 : DType::kI32},
                       static_cast<std::uint64_t>(1000 * call + 10 * rank_));
  const PrepareArguments on_cpu{
      .hidden = in.hidden,
      .topk_ids = in.ids,
      .topk_weights = in.weights,
      .micro_batch = call % cpu_->num_micro_batches(),
  };
  last_ = on_cpu.micro_batch;
  PrepareArguments arguments = on_gpu(on_cpu);
  arguments.host_counts = call % 3 == 0;
  const Prepared got = prepare(*gpu_, arguments, call, arena_.stream());
  const Prepared want = prepare(*cpu_, on_cpu, call, Stream::host());
  num_rows_ = num_rows_of(got.experts.rows);
  arena_.wait();
  gpu_->check();
  EXPECT_EQ(got.host.has_value(), arguments.host_counts);
  if (want.metadata.has_value()) expect_host_counts(*want.metadata, *got.metadata, got.host);
  if (config.scheme.group == ScaleGroup::kTensor) {
    const Downloaded scale(got.experts.scales, arena_.stream());
    EXPECT_EQ(*scale.as<float>(), *want.experts.scales.as<float>());
  }
  finalize(want, in.hidden.shape(0), call);
}

void ClassRank::expect_host_counts(const ExpertTokensMetadata& want,
                                   const ExpertTokensMetadata& got,
                                   const std::optional<HostCounts>& host) const {
  ASSERT_EQ(got.expert_num_tokens_cpu.has_value(), host.has_value());
  if (!host.has_value()) return;
  ASSERT_EQ(got.expert_num_tokens_cpu.shape(0), want.expert_num_tokens_cpu.shape(0));
  for (std::int64_t e = 0; e < want.expert_num_tokens_cpu.shape(0); ++e) {
    EXPECT_EQ(got.expert_num_tokens_cpu.as<std::int32_t>()[e],
              want.expert_num_tokens_cpu.as<std::int32_t>()[e]);
  }
}

// Returns what the experts return, for as many rows as the GPU's buffer has, with NaN wherever
// nothing may be read.
Tensor ClassRank::results(const Prepared& prepared, WeightAndReduceKind policy, int call) const {
  const std::int64_t hidden = c_.config.hidden;
  const bool is_cube = !is_grouped() && policy != WeightAndReduceKind::kNoOp;
  const std::int64_t num_topk = is_cube ? c_.config.num_topk : 1;
  const std::int64_t num_rows = num_rows_ * num_topk;
  Tensor rows(DType::kBF16, {num_rows, hidden});
  std::fill_n(rows.as<std::uint16_t>(), num_rows * hidden, std::uint16_t{0x7FC0});
  for (const RowOrigin& origin : cpu_->row_origins(last_)) {
    for (std::int64_t k = 0; k < num_topk; ++k) {
      const std::int64_t at = origin.row * num_topk + k;
      if (is_cube) {
        const std::int64_t id = IdTensor("results", "ids", prepared.topk_ids)[at];
        if (id < 0 || cpu_->expert_map().as<std::int32_t>()[id] < 0) continue;
      }
      fill(rows.as<std::uint16_t>() + at * hidden, DType::kBF16, hidden,
           static_cast<std::uint64_t>(7 * call + 31 * at + 17));
    }
  }
  return rows;
}

void ClassRank::finalize(const Prepared& prepared, std::int64_t num_tokens, int call) {
  const WeightAndReduce policies[] = {
      is_grouped() ? WeightAndReduce::delegate() : WeightAndReduce::no_op(),
      WeightAndReduce::delegate(),
      is_grouped() ? WeightAndReduce::no_op() : WeightAndReduce::contiguous(true),
      c_.kind == PrepareKind::kElasticPrefill ? WeightAndReduce::contiguous(false)
                                              : WeightAndReduce::delegate()};
  const WeightAndReduce policy = policies[call % 4];
  const std::int64_t hidden = c_.config.hidden;
  const Tensor rows = results(prepared, policy.kind, call);
  const bool is_cube = !is_grouped() && policy.kind != WeightAndReduceKind::kNoOp;
  const std::int64_t per_row = is_cube ? c_.config.num_topk : 1;
  const DType dtype = call % 2 == 0 ? DType::kBF16 : DType::kF32;
  const Tensor output(dtype, {num_tokens, hidden});
  FinalizeArguments on_gpu;
  on_gpu.output = arena_.upload(output);
  on_gpu.expert_output = arena_.upload(rows);
  on_gpu.weight_and_reduce = policy;
  on_gpu.micro_batch = last_;
  if (is_cube || policy.kind == WeightAndReduceKind::kContiguous) {
    on_gpu.reduced = arena_.allocate(DType::kBF16, {num_rows_, hidden});
  }
  if (call % 2 == 1) {
    gpu_->finalize_async(on_gpu, arena_.stream()).receiver();
  } else {
    gpu_->finalize(on_gpu, arena_.stream());
  }
  const std::int64_t cpu_rows = num_rows_of(prepared.experts.rows);
  const TensorView returned =
      is_cube ? TensorView(rows.data(), DType::kBF16, {cpu_rows, per_row, hidden})
              : TensorView(rows.data(), DType::kBF16, {cpu_rows, hidden});
  cpu_->finalize({output, returned, policy, last_});
  arena_.wait();
  gpu_->check();
  const Downloaded got(on_gpu.output, arena_.stream());
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const auto bytes = static_cast<std::size_t>(hidden * bits_of(dtype) / 8);
    ASSERT_EQ(std::memcmp(got.as<std::byte>() + static_cast<std::size_t>(t) * bytes,
                          output.as<std::byte>() + static_cast<std::size_t>(t) * bytes, bytes),
              0)
        << "call " << call << ": output of token " << t;
  }
}

}  // namespace switchyard::test
