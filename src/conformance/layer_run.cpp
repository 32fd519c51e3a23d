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

// N(0, 1) / 10 in bf16, drawn from a pool because weights are many.
Table<float> random_weights(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  static const Table<float> kPool = random_table(1, 1 << 14, 77, 0.1f);
  Table<float> table(rows, cols);
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = kPool.data[random_bits(seed, i) % kPool.data.size()];
  }
  return table;
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
    x = reference::round_to(DType::kBF16, x * test.magnitude);
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
        x = reference::weigh_input(DType::kBF16, x, served.topk_weights(t, 0));
      }
      served.topk_weights(t, 0) = 1.0f;
    }
  }
  const std::int64_t rows = shape.num_experts * test.intermediate;
  weights_ = {shape.num_experts,
              shape.hidden,
              test.intermediate,
              random_weights(rows, shape.hidden, seed + 11),
              random_weights(rows, shape.hidden, seed + 12),
              random_weights(shape.num_experts * shape.hidden, test.intermediate, seed + 13)};
  if (test.scheme.needs_tensor_scale()) static_scale_ = 448.0f * 6.0f / (4.5f * test.magnitude);
  if (test.has_static_scale) static_scale_ = 0.031f * test.magnitude;
}

LayerRun::Setup LayerRun::set_up() const {
  Setup setup;
  PrepareFinalizeConfig& config = setup.config;
  config.num_experts = test_.shape.num_experts;
  config.num_topk = test_.shape.num_topk;
  config.hidden = test_.shape.hidden;
  for (const reference::RankInput& input : batch_.ranks) {
    config.max_tokens_per_rank = std::max(config.max_tokens_per_rank, input.num_tokens());
  }
  config.max_tokens_per_rank += 2;  // more than come
  config.scheme = test_.scheme;
  config.static_scale = static_scale_;
  config.scale_layout = test_.scale_layout;
  config.reduce = test_.reduce;
  config.num_micro_batches = test_.num_micro_batches;
  const std::int64_t first = reference::first_expert(config.num_experts, num_ranks_, rank_);
  const std::int64_t num = reference::num_local_experts(config.num_experts, num_ranks_, rank_);
  setup.gate = stacked(weights_.gate, first, num, test_.intermediate);
  setup.up = stacked(weights_.up, first, num, test_.intermediate);
  setup.down = stacked(weights_.down, first, num, test_.shape.hidden);
  setup.options.intermediate = test_.quantizes_activation ? test_.scheme : schemes::kNone;

  const reference::RankInput& own = batch_.ranks[static_cast<std::size_t>(rank_)];
  const std::int64_t num_tokens = own.num_tokens();
  const std::int64_t num_topk = test_.shape.num_topk;
  setup.tokens = encode(DType::kBF16, own.tokens);
  setup.wide_ids.assign(own.topk_ids.data.begin(), own.topk_ids.data.end());
  PrepareArguments& arguments = setup.arguments;
  arguments.hidden =
      TensorView(setup.tokens.data(), DType::kBF16, {num_tokens, test_.shape.hidden});
  arguments.topk_ids = test_.has_wide_ids
                           ? TensorView::of(setup.wide_ids.data(), {num_tokens, num_topk})
                           : TensorView::of(own.topk_ids.data.data(), {num_tokens, num_topk});
  arguments.topk_weights = TensorView::of(own.topk_weights.data.data(), {num_tokens, num_topk});
  arguments.apply_router_weight_on_input = test_.weighs_input;
  return setup;
}

Tensor LayerRun::run(const Group& group, Device device, Agreement& agreement) const try {
  const Setup setup = set_up();
  const PrepareArguments& given = setup.arguments;
  Tensor output = poisoned(DType::kBF16, given.hidden.shape(0), test_.shape.hidden);
  constexpr std::size_t kGaps = 4096;
  Arena arena(device, span_bytes(given.hidden) + span_bytes(given.topk_ids) +
                          span_bytes(given.topk_weights) + span_bytes(output) + kGaps);
  ExchangeOptions options{.device = device};
  if (device.is_cuda()) options.timeout_ms = group.timeout_ms();
  options.exact_memory = (test_.num_tokens + rank_) % 2 == 1;  // each rank may choose
  ModularKernel kernel(
      make_prepare_finalize(test_.kind, group, setup.config, options),
      make_layer_experts(test_.experts, setup.weights(), setup.options, device, agreement));
  PrepareArguments arguments = given;
  arguments.hidden = arena.in(given.hidden);
  arguments.topk_ids = arena.in(given.topk_ids);
  arguments.topk_weights = arena.in(given.topk_weights);
  const TensorView there = arena.out(output);
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
  return output;
} catch (const Error& error) {
  // Refused for its configuration: by every rank alike, before anything was sent.
  if (error.code() != Errc::kNotSupported || device.is_cpu()) throw;
  agreement.skipped = error.what();
  return {};
}

// Rows as experts see them. Blocks and rows have scales of their own, so it does not matter where
// they are quantized; one scale for the tensor is that of the rows given.
Table<float> LayerRun::quantized(const Table<float>& rows) const {
  if (!test_.scheme.is_quantized()) return rows;
  return reference::dequantize(test_.scheme,
                               reference::quantize(test_.scheme, rows, static_scale_));
}

Table<float> LayerRun::exact() const {
  const QuantScheme intermediate = test_.quantizes_activation ? test_.scheme : schemes::kNone;
  std::vector<ExpertMajor> placed;
  std::vector<Table<float>> rows;
  for (int r = 0; r < num_ranks_; ++r) {
    placed.push_back(reference::dispatch_expanded(served_, r, 1));
    const ExpertMajor& last = placed.back();
    rows.push_back(reference::apply_experts(
        weights_, reference::first_expert(served_.num_experts, num_ranks_, r), last,
        quantized(reference::receive(served_, last.rows, last.num_rows)), intermediate));
  }
  if (test_.reduce == Reduce::kPerExpert) {
    return reference::combine_per_expert(served_, rank_, placed, rows, DType::kBF16);
  }
  std::vector<Table<float>> partials;
  for (int r = 0; r < num_ranks_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    partials.push_back(reference::reduce_on_rank(served_, r, placed[i], rows[i], true));
  }
  const auto order = test_.kind == PrepareKind::kAllGather ? reference::PartialOrder::kRank
                                                           : reference::PartialOrder::kHighestSlot;
  return reference::sum_partials(served_, rank_, partials, {}, DType::kBF16, order);
}

Table<float> LayerRun::plain() const {
  const Batch own{served_.num_experts, {served_.ranks[static_cast<std::size_t>(rank_)]}};
  const std::array<ExpertMajor, 1> placed{reference::dispatch_expanded(own, 0, 1)};
  const Table<float> sent = quantized(own.ranks[0].tokens);
  Table<float> rows(placed[0].num_rows, sent.cols);
  for (const reference::Position& p : placed[0].rows) {
    std::ranges::copy(sent.row(p.token), rows.row(p.index).begin());
  }
  const std::array<Table<float>, 1> outputs{
      reference::apply_experts(weights_, 0, placed[0], rows, schemes::kNone)};
  return reference::combine_per_expert(own, 0, placed, outputs, DType::kF32);
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
