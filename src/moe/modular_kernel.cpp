// SPDX-License-Identifier: Apache-2.0

#include "switchyard/modular_kernel.h"

#include <array>
#include <exception>

#include "switchyard/router.h"

#include "core/aligned_buffer.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/fail.h"
#include "core/format.h"
#include "cpu/weigh_reduce.h"
#include "quant/exp.h"

namespace switchyard {

/// Memory of the expert stage: what the experts return, their scratch, and the shared rows, which
/// grow to the largest T seen.
struct ModularKernel::Scratch {
  AlignedBuffer expert_output;
  AlignedBuffer expert_workspace;
  AlignedBuffer shared_workspace;
  AlignedBuffer shared_rows;    ///< [T, H] bf16
  AlignedBuffer shared_logits;  ///< [T, 1] f32
  std::int64_t shared_capacity = 0;
};

namespace {

void check_gate(const TensorView& gate, std::int64_t hidden) {
  if (!gate.has_value()) return;
  const bool dtype_fits =
      gate.dtype() == DType::kBF16 || gate.dtype() == DType::kF16 || gate.dtype() == DType::kF32;
  const bool is_row = gate.num_dims() == 1 || (gate.num_dims() == 2 && gate.shape(0) == 1);
  require(dtype_fits && is_row && gate.is_contiguous() && gate.num_elements() == hidden,
          Errc::kInvalidArgument,
          "modular_kernel: shared gate is {}, must be bf16, f16 or f32 [{}] or [1, {}]", gate,
          hidden, hidden);
}

}  // namespace

ModularKernel::ModularKernel(std::unique_ptr<PrepareFinalize> prepare_finalize,
                             std::unique_ptr<Experts> experts, SharedExpert shared)
    : prepare_finalize_(std::move(prepare_finalize)),
      experts_(std::move(experts)),
      shared_(std::move(shared)),
      scratch_(std::make_unique<Scratch>()) {
  require(prepare_finalize_ != nullptr && experts_ != nullptr, Errc::kInvalidArgument,
          "modular_kernel: prepare_finalize and experts must both be given");
  check_gate(shared_.gate, prepare_finalize_->hidden());
  const std::int64_t num_rows = prepare_finalize_->max_buffer_rows();
  scratch_->expert_output = AlignedBuffer(checked_mul(
      static_cast<std::size_t>(num_rows * prepare_finalize_->hidden()), sizeof(std::uint16_t)));
  scratch_->expert_workspace = AlignedBuffer(experts_->workspace_bytes(num_rows));
}

ModularKernel::~ModularKernel() = default;

std::size_t ModularKernel::workspace_bytes() const {
  return scratch_->expert_output.size_bytes() + scratch_->expert_workspace.size_bytes();
}

void ModularKernel::apply(const PrepareArguments& arguments, const TensorView& output) {
  require(output.dtype() == DType::kBF16 && output.num_dims() == 2 &&
              output.shape(0) == arguments.hidden.shape(0) &&
              output.shape(1) == prepare_finalize_->hidden() && output.stride(1) == 1,
          Errc::kInvalidArgument, "modular_kernel: output is {}, must be bf16 [{}, {}]", output,
          arguments.hidden.shape(0), prepare_finalize_->hidden());
  const std::int64_t start = now_ns();
  Pending<Prepared> prepare = prepare_finalize_->prepare_async(arguments);
  const std::int64_t sent = now_ns();
  if (prepare.hook) prepare.hook();
  const Prepared prepared = prepare.receiver();
  const std::int64_t placed = now_ns();
  const TensorView expert_output = run_experts(prepared, arguments.micro_batch);

  const std::int64_t returning = now_ns();
  Pending<void> finalize =
      prepare_finalize_->finalize_async(output, expert_output, arguments.micro_batch);
  const std::int64_t returned = now_ns();
  run_shared(arguments.hidden);
  const std::int64_t shared = now_ns();
  if (finalize.hook) finalize.hook();
  finalize.receiver();
  add_shared(output);
  times_.dispatch_ns = sent - start;
  times_.place_ns = placed - sent;
  times_.combine_ns = (returned - returning) + (now_ns() - shared);
  times_.shared_ns = shared - returned;
}

// Peers wait for these rows: when the experts fail they must learn of it.
TensorView ModularKernel::run_experts(const Prepared& prepared, int micro_batch) try {
  const std::int64_t start = now_ns();
  const TensorView& rows = prepared.experts.rows;
  const TensorView expert_output(scratch_->expert_output.data(), DType::kBF16,
                                 {rows.shape(0), rows.shape(1)});
  experts_->apply(prepared.experts, expert_output,
                  {scratch_->expert_workspace.data(), scratch_->expert_workspace.size_bytes()});
  times_.experts_ns = now_ns() - start;
  if (inspector_) inspector_(prepared, expert_output);
  return expert_output;
} catch (const std::exception& error) {
  prepare_finalize_->abandon(micro_batch, fmt::format("its experts ended with: {}", error.what()));
  throw;
}

// The expert's rows; where there is a gate times sigmoid(x . gate), in f32, rounded again.
void ModularKernel::run_shared(const TensorView& hidden) {
  if (shared_.experts == nullptr) return;
  const std::int64_t num_tokens = hidden.shape(0);
  const std::int64_t width = hidden.shape(1);
  Scratch& scratch = *scratch_;
  if (num_tokens > scratch.shared_capacity) {
    scratch.shared_capacity = num_tokens;
    scratch.shared_rows = AlignedBuffer(static_cast<std::size_t>(num_tokens * width) * 2);
    scratch.shared_logits = AlignedBuffer(static_cast<std::size_t>(num_tokens) * sizeof(float));
    scratch.shared_workspace = AlignedBuffer(shared_.experts->workspace_bytes(num_tokens));
  }
  const TensorView rows(scratch.shared_rows.data(), DType::kBF16, {num_tokens, width});
  const std::array<std::int64_t, 1> first_row{0};
  const std::array<std::int32_t, 1> num_rows{static_cast<std::int32_t>(num_tokens)};
  shared_.experts->apply({hidden, {}, schemes::kNone, first_row, num_rows}, rows,
                         {scratch.shared_workspace.data(), scratch.shared_workspace.size_bytes()});
  if (!shared_.gate.has_value()) return;

  const TensorView logits(scratch.shared_logits.data(), DType::kF32, {num_tokens, 1});
  router_logits(hidden, TensorView(shared_.gate.data(), shared_.gate.dtype(), {1, width}), logits);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const float scale = sigmoid(logits.as<float>()[t]);
    std::uint16_t* row = rows.as<std::uint16_t>() + t * width;
    const void* const terms[] = {row};
    weigh_reduce_row(terms, DType::kBF16, &scale, 1, width, row, DType::kBF16);
  }
}

void ModularKernel::add_shared(const TensorView& output) {
  if (shared_.experts == nullptr) return;
  const std::int64_t width = output.shape(1);
  for (std::int64_t t = 0; t < output.shape(0); ++t) {
    std::uint16_t* to = output.as<std::uint16_t>() + t * output.stride(0);
    const void* const terms[] = {to, scratch_->shared_rows.as<std::uint16_t>() + t * width};
    weigh_reduce_row(terms, DType::kBF16, nullptr, 2, width, to, DType::kBF16);
  }
}

}  // namespace switchyard
