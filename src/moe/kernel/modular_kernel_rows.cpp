// SPDX-License-Identifier: Apache-2.0
//
// modular_kernel_rows.cpp: rows to the experts and back: as they come where they are grouped, else
// permuted; and the rows of the shared expert.

#include <algorithm>
#include <numeric>
#include <optional>

#include "switchyard/permute.h"
#include "switchyard/scale_layout.h"

#include "core/bytes.h"
#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "device/cuda_module.h"
#include "device/layer_rows.h"
#include "moe/kernel/layer_checks.h"
#include "moe/kernel/modular_kernel_memory.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

// The larger of what experts want for rows as they come, and for rows that they quantize.
std::size_t workspace_for(const Experts& experts, const PrepareFinalize& prepare,
                          std::int64_t num_rows) {
  std::size_t max_bytes = 0;
  const std::int64_t num_local = prepare.num_local_experts();
  const bool is_batched =
      prepare.activation_format() == ActivationFormat::kBatched && num_local > 0;
  for (const bool is_deferred : {false, true}) {
    const DType dtype = stored_dtype(prepare.row_scheme(is_deferred));
    const TensorView rows =
        is_batched ? TensorView(nullptr, dtype, {num_local, num_rows / num_local, prepare.hidden()})
                   : TensorView(nullptr, dtype, {num_rows, prepare.hidden()});
    max_bytes = std::max(max_bytes, experts.workspace_bytes(rows));
  }
  return max_bytes;
}

std::span<std::byte> span_of(const Tensor& bytes) {
  return {bytes.as<std::byte>(), bytes.view().num_bytes()};
}

std::int64_t as_extent(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

}  // namespace

Tensor ModularKernel::allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor(dtype, shape, device());
  workspace_bytes_ += tensor.view().num_bytes();
  return tensor;
}

// On GPUs a further micro-batch takes its memory when it is used first; where ranks share the GPU
// all of it is taken here, while no rank's kernels wait.
void ModularKernel::allocate_memory() {
  const PrepareFinalize& prepare = *prepare_finalize_;
  const bool is_shared = prepare.is_shared_gpu();
  if (shared_.experts != nullptr) allocate_shared();
  scratch_.resize(static_cast<std::size_t>(prepare.num_micro_batches()));
  for (Scratch& scratch : scratch_) {
    const bool is_first = &scratch == &scratch_.front();
    if (is_first || device().is_cpu() || is_shared) allocate_scratch(scratch);
    if (device().is_cpu() || scratch_.size() == 1) continue;
    // Ranks that share a GPU share its hardware queues, where a stream may stand behind another's.
    scratch.side_stream =
        is_first || !is_shared ? cuda_module().make_stream(device()) : scratch_.front().side_stream;
  }
}

void ModularKernel::allocate_scratch(Scratch& scratch) {
  const PrepareFinalize& prepare = *prepare_finalize_;
  const bool is_permuted = is_token_major(prepare.kind());
  const std::int64_t arrived = prepare.max_buffer_rows();
  const std::int64_t grouped =
      is_permuted ? compute_aligned_m(arrived, prepare.num_topk(), prepare.num_local_experts(), 1)
                  : arrived;
  scratch.expert_output = allocate(experts_->output_dtype(), {grouped, prepare.hidden()});
  scratch.expert_workspace =
      allocate(DType::kU8, {as_extent(workspace_for(*experts_, prepare, grouped))});
  if (is_permuted) allocate_permuted(scratch, grouped);
  if (shared_.experts == nullptr) return;
  const std::int64_t num_tokens = shared_memory_->num_tokens.shape(0) - 1;
  std::size_t shared_bytes = 0;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const TensorView rows(nullptr, dtype, {num_tokens, prepare.hidden()});
    shared_bytes = std::max(shared_bytes, shared_.experts->workspace_bytes(rows));
  }
  scratch.shared_rows = allocate(shared_.experts->output_dtype(), {num_tokens, prepare.hidden()});
  scratch.shared_weights = allocate(DType::kF32, {num_tokens});
  scratch.shared_workspace = allocate(DType::kU8, {as_extent(shared_bytes)});
}

// The default stream is another one on each thread, and the receive part of a micro-batch runs on
// the thread of the next.
Stream ModularKernel::stream_of(int micro_batch, Stream stream) const {
  const auto& side = micro_batch_of(micro_batch).side_stream;
  const bool is_callers = micro_batch == 0 || prepare_finalize_->is_shared_gpu();
  const bool stays = is_callers && stream != Stream::default_of(device());
  return side == nullptr || stays ? stream : Stream::cuda(side.get(), device().index);
}

void ModularKernel::allocate_permuted(Scratch& scratch, std::int64_t grouped) {
  const PrepareFinalize& prepare = *prepare_finalize_;
  const std::int64_t arrived = prepare.max_buffer_rows();
  const std::int64_t num_local = prepare.num_local_experts();
  std::size_t row = 0;
  std::size_t row_scales = 0;
  for (const bool is_deferred : {false, true}) {
    const bool is_swizzled = prepare.row_scale_layout(is_deferred) == ScaleLayout::kSwizzled;
    require(device().is_cpu() || !is_swizzled, Errc::kNotSupported,
            "modular_kernel: scale_layout is swizzled in {}, whose rows are permuted here; on GPUs "
            "must be row_major or column_major",
            prepare.name());
    const QuantScheme scheme = prepare.row_scheme(is_deferred);
    // Without an exchange, unquantized rows keep the caller's dtype, which may be f32.
    const std::size_t stored = row_bytes(scheme, prepare.hidden());
    row = std::max(row, device().is_cpu() && !scheme.is_quantized() ? 2 * stored : stored);
    row_scales = std::max(row_scales, scale_row_bytes(scheme, prepare.hidden()));
  }
  const auto rows = static_cast<std::size_t>(grouped);
  scratch.rows = allocate(DType::kU8, {as_extent(checked_mul(rows, row))});
  scratch.scales = allocate(DType::kU8, {as_extent(checked_mul(rows, row_scales))});
  scratch.row_experts = allocate(DType::kI32, {grouped});
  scratch.inv_perm = allocate(DType::kI32, {arrived, prepare.num_topk()});
  scratch.first_row = allocate(DType::kI64, {num_local});
  scratch.num_rows = allocate(DType::kI32, {num_local});
  scratch.reduced = allocate(experts_->output_dtype(), {arrived, prepare.hidden()});
  if (device().is_cpu()) return;
  scratch.permute_workspace = allocate(
      DType::kU8, {as_extent(ep_scatter_workspace_bytes(arrived, prepare.num_topk(), num_local))});
}

void ModularKernel::allocate_shared() {
  const std::optional<std::int64_t> max_tokens = prepare_finalize_->max_num_tokens_per_rank();
  require(max_tokens.has_value(), Errc::kInvalidArgument,
          "modular_kernel: {} has no max_num_tokens_per_rank, which a shared expert needs for its "
          "memory",
          prepare_finalize_->name());
  const std::int64_t num_tokens = *max_tokens;
  std::vector<std::int32_t> counts(static_cast<std::size_t>(num_tokens) + 1);
  std::iota(counts.begin(), counts.end(), 0);
  shared_memory_ = std::make_unique<SharedMemory>();
  shared_memory_->first_row = allocate(DType::kI64, {1});
  shared_memory_->num_tokens = copy_to(TensorView::of(counts.data(), {num_tokens + 1}), device());
}

TensorView ModularKernel::run_grouped(const ExpertRows& rows, Scratch& scratch, Stream stream) {
  const TensorView& from = rows.rows;
  void* const data = scratch.expert_output.data();
  const DType dtype = scratch.expert_output.dtype();
  const TensorView output =
      from.num_dims() == 3
          ? TensorView(data, dtype, {from.shape(0), from.shape(1), from.shape(2)}, device())
          : TensorView(data, dtype, {from.shape(0), from.shape(1)}, device());
  if (from.num_elements() == 0 || rows.num_rows.num_elements() == 0) return output;
  if (device().is_cpu()) {
    const auto* counts = rows.num_rows.as<std::int32_t>();
    const auto has_rows = [](std::int32_t count) { return count != 0; };
    if (std::none_of(counts, counts + rows.num_rows.num_elements(), has_rows)) return output;
  }
  experts_->apply(rows, output, span_of(scratch.expert_workspace), stream);
  return output;
}

// Token-major rows: hand each row to the local experts that want it and sum their weighted results.
TensorView ModularKernel::run_permuted(const Prepared& prepared, Scratch& scratch, Stream stream) {
  const ExpertRows& arrived = prepared.experts;
  const std::int64_t num_rows = arrived.rows.shape(0);
  const std::int64_t num_topk = prepare_finalize_->num_topk();
  const std::int64_t grouped =
      compute_aligned_m(num_rows, num_topk, prepare_finalize_->num_local_experts(), 1);
  Tensor linear_scales;  // on CPUs
  TensorView scales = arrived.scales;
  if (arrived.scale_layout == ScaleLayout::kSwizzled) {
    linear_scales =
        unswizzle_scales(scales, num_rows, num_scales(arrived.scheme, arrived.rows.shape(1)));
    scales = linear_scales;
  }
  const bool has_row_scales = scales.num_dims() == 2;
  PermuteOptions options;
  options.expert_map = prepare_finalize_->expert_map();
  options.alignment = 1;
  ScatterOutputs outputs;
  outputs.x = TensorView(scratch.rows.data(), arrived.rows.dtype(),
                         {grouped, arrived.rows.shape(1)}, device());
  if (has_row_scales) {
    outputs.scales =
        TensorView(scratch.scales.data(), scales.dtype(), {grouped, scales.shape(1)}, device());
  }
  outputs.m_indices = TensorView(scratch.row_experts.data(), DType::kI32, {grouped}, device());
  outputs.inv_perm =
      TensorView(scratch.inv_perm.data(), DType::kI32, {num_rows, num_topk}, device());
  outputs.first_row = scratch.first_row;
  outputs.expert_num_tokens = scratch.num_rows;
  ep_scatter(arrived.rows, has_row_scales ? scales : TensorView(), prepared.topk_ids, options,
             outputs, stream, span_of(scratch.permute_workspace));
  const ExpertRows rows{outputs.x,        has_row_scales ? outputs.scales : scales,
                        arrived.scheme,   scratch.first_row,
                        scratch.num_rows, arrived.tensor_scale};
  const TensorView output = run_grouped(rows, scratch, stream);
  const TensorView reduced(scratch.reduced.data(), scratch.reduced.dtype(),
                           {num_rows, prepare_finalize_->hidden()}, device());
  unpermute_and_reduce(output, outputs.inv_perm, prepared.topk_weights, reduced, stream);
  return reduced;
}

TensorView ModularKernel::rows_of_shared(std::int64_t num_tokens, const Scratch& scratch) const {
  return TensorView(scratch.shared_rows.data(), scratch.shared_rows.dtype(),
                    {num_tokens, prepare_finalize_->hidden()}, device());
}

// The expert's rows; where there is a gate times sigmoid(x . gate), in f32, rounded again.
void ModularKernel::run_shared(const TensorView& hidden, Scratch& scratch, Stream stream) {
  const std::int64_t num_tokens = hidden.shape(0);
  check_matrix(hidden, {"modular_kernel",
                        "hidden",
                        {DType::kBF16, DType::kF16, DType::kF32},
                        num_tokens,
                        prepare_finalize_->hidden()});
  const std::int64_t max_tokens = shared_memory_->num_tokens.shape(0) - 1;
  require(num_tokens <= max_tokens, Errc::kInvalidArgument,
          "modular_kernel: hidden has {} rows, but max_tokens_per_rank is {}", num_tokens,
          max_tokens);
  const TensorView rows = rows_of_shared(num_tokens, scratch);
  const TensorView count(shared_memory_->num_tokens.as<std::int32_t>() + num_tokens, DType::kI32,
                         {1}, device());
  if (num_tokens > 0) {
    const QuantScheme plain{hidden.dtype()};
    shared_.experts->apply({hidden, {}, plain, shared_memory_->first_row, count, {}}, rows,
                           span_of(scratch.shared_workspace), stream);
  }
  if (shared_.gate.has_value()) {
    gate_rows(hidden, shared_.gate, scratch.shared_weights, rows, stream);
  }
  observe(LayerStage::kShared);
}

}  // namespace switchyard
