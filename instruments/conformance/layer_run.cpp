// SPDX-License-Identifier: Apache-2.0

#include "conformance/layer_run.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "switchyard/error.h"
#include "switchyard/micro_batches.h"

#include "conformance/arena.h"
#include "conformance/exchange_values.h"
#include "core/even_parts.h"
#include "reference/batched.h"

namespace switchyard::conformance {

using reference::Batch;
using reference::ExpertMajor;
using reference::Table;

namespace {

constexpr std::int64_t kSharedIntermediate = 24;

// N(0, 1) / 10 in bf16, drawn from a pool because weights are many.
Table<float> random_weights(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  static const Table<float> kPool = random_table(1, 1 << 14, 77, 0.1f);
  Table<float> table(rows, cols);
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = kPool.data[random_bits(seed, i) % kPool.data.size()];
  }
  return table;
}

reference::MlpWeights random_mlp(std::int32_t num_experts, std::int64_t hidden,
                                 std::int64_t intermediate, std::uint64_t seed) {
  const std::int64_t rows = num_experts * intermediate;
  return {num_experts,
          hidden,
          intermediate,
          random_weights(rows, hidden, seed),
          random_weights(rows, hidden, seed + 1),
          random_weights(num_experts * hidden, intermediate, seed + 2)};
}

// Experts [first, first + num) of stacked weights, [num, rows, cols] bf16.
Tensor stacked(const Table<float>& table, std::int64_t first, std::int64_t num, std::int64_t rows) {
  Tensor tensor(DType::kBF16, {num, rows, table.cols});
  const auto begin = table.data.begin() + first * rows * table.cols;
  const Table<float> part(num * rows, table.cols,
                          std::vector<float>(begin, begin + num * rows * table.cols));
  const Bytes bytes = encode(DType::kBF16, part);
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

// On GPUs cuBLAS, where it is there, for oneDNN.
std::unique_ptr<Experts> make_layer_experts(const std::string& name, const ExpertWeights& weights,
                                            const ExpertOptions& options, Device device,
                                            Agreement& agreement) {
  if (device.is_cpu() || name != "onednn") return make_experts(name, weights, options, device);
  try {
    return make_cublas_experts(weights, options, device);
  } catch (const Error& error) {
    if (error.code() != Errc::kNotAvailable) throw;
    agreement.left_out.emplace_back("cuBLAS (not found; exact experts were used)");
    return make_exact_experts(weights, options, device);
  }
}

// Rows [begin, end) of a matrix.
TensorView rows_of(const TensorView& matrix, std::int64_t begin, std::int64_t end) {
  const std::int64_t at = begin * matrix.stride(0) * bits_of(matrix.dtype()) / 8;
  return TensorView(matrix.as<std::byte>() + at, matrix.dtype(), {end - begin, matrix.shape(1)},
                    {matrix.stride(0), 1}, matrix.device());
}

// Micro-batch after micro-batch.
void apply_in_turn(ModularKernel& kernel, const PrepareArguments& whole, const TensorView& output,
                   int num_micro_batches, Stream stream) {
  const std::int64_t num_tokens = whole.hidden.shape(0);
  for (int m = 0; m < num_micro_batches; ++m) {
    const std::int64_t begin = part_begin(num_tokens, num_micro_batches, m);
    const std::int64_t end = part_begin(num_tokens, num_micro_batches, m + 1);
    PrepareArguments part = whole;
    part.hidden = rows_of(whole.hidden, begin, end);
    part.topk_ids = rows_of(whole.topk_ids, begin, end);
    part.topk_weights = rows_of(whole.topk_weights, begin, end);
    part.micro_batch = m;
    kernel.apply(part, rows_of(output, begin, end), stream);
  }
}

}  // namespace

LayerRun::LayerRun(const Group& group, const LayerCase& test, std::uint64_t seed) : test_(test) {
  const bool is_alone = test.kind == PrepareKind::kLocal;
  const BatchShape& shape = test.shape;
  reference::RankInput input = random_tokens(shape, test.num_tokens, seed);
  for (float& x : input.tokens.data) {
    // f16 and f32 get values that bf16 cannot hold.
    x = reference::round_to(test.input,
                            x * test.magnitude / (test.input == DType::kBF16 ? 1.0f : 3.0f));
  }
  batch_ = split(input, shape.num_experts, group.size());
  if (is_alone) {
    batch_ = Batch{shape.num_experts, {batch_.ranks[static_cast<std::size_t>(group.rank())]}};
  }
  rank_ = is_alone ? 0 : group.rank();
  num_ranks_ = batch_.num_ranks();
  served_ = batch_;
  for (reference::RankInput& served : served_.ranks) {
    for (std::int64_t t = 0; test.weighs_input && t < served.num_tokens(); ++t) {
      for (float& x : served.tokens.row(t)) {
        x = reference::weigh_input(test.input, x, served.topk_weights(t, 0));
      }
      served.topk_weights(t, 0) = 1.0f;
    }
  }
  layer_.dispatch = {test.output()};  // of the shared expert, whose tokens stay
  layer_.experts = random_mlp(shape.num_experts, shape.hidden, test.intermediate, seed + 11);
  if (test.shared != SharedKind::kNone) {
    layer_.shared = random_mlp(1, shape.hidden, kSharedIntermediate, seed + 14);
  }
  if (test.shared > SharedKind::kPlain) {
    layer_.shared_gate = random_table(1, shape.hidden, seed + 17, 0.1f).data;
  }
  if (test.scheme.needs_tensor_scale() || wire().needs_tensor_scale())
    static_scale_ = 448.0f * 6.0f / (4.5f * test.magnitude);
  if (test.has_static_scale) static_scale_ = 0.031f * test.magnitude;
}

LayerRun::Setup LayerRun::set_up() const {
  Setup setup;
  PrepareFinalizeConfig& config = setup.config;
  config.num_experts = test_.shape.num_experts;
  config.num_topk = test_.shape.num_topk;
  config.hidden = test_.shape.hidden;
  config.max_tokens_per_rank = max_tokens() + kSpareTokens;
  config.scheme = test_.scheme;
  config.wire_scheme = test_.wire_scheme;
  config.combine_scheme = {test_.output()};
  config.defers_input_quant = test_.defers;
  config.expert_alignment = test_.alignment;
  config.static_scale = static_scale_;
  config.scale_layout = test_.scale_layout;
  config.reduce = test_.reduce;
  config.num_micro_batches = test_.num_micro_batches;
  config.slices_experts = test_.slices_experts;
  const bool is_sliced = test_.slices_experts;
  const int holders = is_sliced ? 1 : num_ranks_;
  const int holder = is_sliced ? 0 : rank_;
  const std::int64_t first = reference::first_expert(config.num_experts, holders, holder);
  const std::int64_t num = reference::num_local_experts(config.num_experts, holders, holder);
  const std::int64_t hidden = test_.shape.hidden;
  const reference::MlpWeights experts = is_sliced ? slice_of_rank(rank_) : layer_.experts;
  setup.gate = stacked(experts.gate, first, num, experts.intermediate);
  setup.up = stacked(experts.up, first, num, experts.intermediate);
  setup.down = stacked(experts.down, first, num, hidden);
  if (layer_.shared) {
    setup.shared_gate = stacked(layer_.shared->gate, 0, 1, kSharedIntermediate);
    setup.shared_up = stacked(layer_.shared->up, 0, 1, kSharedIntermediate);
    setup.shared_down = stacked(layer_.shared->down, 0, 1, hidden);
  }
  if (!layer_.shared_gate.empty()) {
    setup.row_gate = Tensor(DType::kBF16, {1, hidden});
    const Bytes gate = encode(DType::kBF16, {1, hidden, layer_.shared_gate});
    std::memcpy(setup.row_gate.data(), gate.data(), gate.size());
  }
  setup.options.intermediate = test_.quantizes_activation ? test_.scheme : schemes::kNone;

  const reference::RankInput& own = batch_.ranks[static_cast<std::size_t>(rank_)];
  const std::int64_t num_tokens = own.num_tokens();
  const std::int64_t num_topk = test_.shape.num_topk;
  setup.tokens = encode(test_.input, own.tokens);
  setup.ids = own.topk_ids.data;
  if (test_.renames) {
    constexpr std::int32_t kStep = 3;
    const std::int32_t num_experts = test_.shape.num_experts;
    for (std::int32_t e = 0; e < num_experts; ++e) {
      config.global_to_physical.push_back((e + kStep) % num_experts);
    }
    for (std::int32_t& id : setup.ids) {
      if (id >= 0) id = (id + num_experts - kStep % num_experts) % num_experts;
    }
  }
  setup.wide_ids.assign(setup.ids.begin(), setup.ids.end());
  PrepareArguments& arguments = setup.arguments;
  arguments.hidden = TensorView(setup.tokens.data(), test_.input, {num_tokens, test_.shape.hidden});
  arguments.topk_ids = test_.has_wide_ids
                           ? TensorView::of(setup.wide_ids.data(), {num_tokens, num_topk})
                           : TensorView::of(setup.ids.data(), {num_tokens, num_topk});
  arguments.topk_weights = TensorView::of(own.topk_weights.data.data(), {num_tokens, num_topk});
  arguments.apply_router_weight_on_input = test_.weighs_input;
  arguments.weighs_in_place = test_.weighs_in_place;
  arguments.defer_input_quant = test_.defers;
  if (test_.limits_calls) arguments.max_tokens = max_tokens();
  return setup;
}

SharedExpert LayerRun::shared_expert(const Setup& setup, const TensorView& row_gate,
                                     Device device) const {
  if (!layer_.shared) return {};
  return {make_exact_experts(setup.shared_weights(), {{test_.output()}}, device), row_gate,
          test_.shared == SharedKind::kGatedFirst ? SharedExpertsOrder::kNoOverlap
                                                  : SharedExpertsOrder::kMkInternalOverlapped};
}

Tensor LayerRun::run(const Group& group, Device device, Agreement& agreement) const try {
  const Setup setup = set_up();
  const PrepareArguments& given = setup.arguments;
  Tensor output = poisoned(test_.output(), given.hidden.shape(0), test_.shape.hidden);
  constexpr std::size_t kGaps = 4096;
  Arena arena(device, span_bytes(given.hidden) + span_bytes(given.topk_ids) +
                          span_bytes(given.topk_weights) + span_bytes(output) +
                          span_bytes(setup.row_gate) + kGaps);
  ExchangeOptions options{.device = device};
  if (device.is_cuda()) options.timeout_ms = group.timeout_ms();
  options.exact_memory = (test_.num_tokens + rank_) % 2 == 1;  // each rank may choose
  ModularKernel kernel(
      make_prepare_finalize(test_.kind, group, setup.config, options),
      make_layer_experts(test_.experts, setup.weights(), setup.options, device, agreement),
      shared_expert(setup, arena.in(setup.row_gate), device));
  PrepareArguments arguments = given;
  arguments.hidden = test_.weighs_input ? arena.out(given.hidden) : arena.in(given.hidden);
  arguments.topk_ids = arena.in(given.topk_ids);
  arguments.topk_weights = arena.in(given.topk_weights);
  const TensorView there = arena.out(output);
  if (test_.num_micro_batches == 1) {
    kernel.set_inspector(
        [&](const Prepared& prepared, const TensorView&) { check_prepared(prepared, arena); });
  }
  if (device.is_cuda()) {
    group.barrier();  // all have their memory
    apply_in_turn(kernel, arguments, there, test_.num_micro_batches, arena.stream());
    agreement.heap = kernel.prepare_finalize().heap();
    agreement.is_shared_gpu = kernel.prepare_finalize().is_shared_gpu();
  } else if (test_.num_micro_batches > 1) {
    apply_overlapped(kernel, arguments, there);
  } else {
    kernel.apply(arguments, there);
  }
  arena.finish();
  kernel.check();
  const reference::Batch& left = test_.weighs_in_place ? served_ : batch_;
  expect_same_bits("tokens", given.hidden, left.ranks[static_cast<std::size_t>(rank_)].tokens);
  return output;
} catch (const Error& error) {
  // Refused for its configuration: by every rank alike, before anything was sent.
  if (error.code() != Errc::kNotSupported || device.is_cpu()) throw;
  agreement.skipped = error.what();
  return {};
}

std::int64_t LayerRun::max_tokens() const {
  std::int64_t most = 0;
  for (const reference::RankInput& input : batch_.ranks) most = std::max(most, input.num_tokens());
  return most;
}

bool has_onednn() try {
  const Tensor matrix(DType::kBF16, {1, 16, 16});
  make_onednn_experts({matrix, matrix, matrix, {}, {}, {}});
  return true;
} catch (const Error& error) {
  if (error.code() == Errc::kNotAvailable) return false;
  throw;
}

}  // namespace switchyard::conformance
