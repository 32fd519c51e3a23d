// SPDX-License-Identifier: Apache-2.0

#include "switchyard/modular_kernel.h"

#include <array>

#include "switchyard/router.h"

#include "core/aligned_buffer.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/fail.h"
#include "quant/bf16.h"
#include "quant/exp.h"

namespace switchyard {

/// Memory of the expert stage: what the experts return, their scratch, and the shared rows.
struct ModularKernel::Scratch {
  AlignedBuffer expert_output;
  AlignedBuffer expert_workspace;
  AlignedBuffer shared_workspace;
  Tensor shared_rows;  ///< [T, H] bf16, grows to the largest T seen
};

ModularKernel::ModularKernel(std::unique_ptr<PrepareFinalize> prepare_finalize,
                             std::unique_ptr<Experts> experts, SharedExpert shared)
    : prepare_finalize_(std::move(prepare_finalize)),
      experts_(std::move(experts)),
      shared_(std::move(shared)),
      scratch_(std::make_unique<Scratch>()) {
  require(prepare_finalize_ != nullptr && experts_ != nullptr, Errc::kInvalidArgument,
          "modular_kernel: prepare_finalize and experts must both be given");
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
  const std::int64_t start = now_ns();
  Pending<Prepared> prepare = prepare_finalize_->prepare_async(arguments);
  const std::int64_t sent = now_ns();
  if (prepare.hook) prepare.hook();
  const Prepared prepared = prepare.receiver();
  const std::int64_t placed = now_ns();

  const TensorView& rows = prepared.experts.rows;
  const TensorView expert_output(scratch_->expert_output.data(), DType::kBF16,
                                 {rows.shape(0), rows.shape(1)});
  experts_->apply(prepared.experts, expert_output,
                  {scratch_->expert_workspace.data(), scratch_->expert_workspace.size_bytes()});
  const std::int64_t computed = now_ns();
  if (inspector_) inspector_(prepared, expert_output);

  const std::int64_t returning = now_ns();
  Pending<void> finalize =
      prepare_finalize_->finalize_async(output, expert_output, arguments.micro_batch);
  const std::int64_t returned = now_ns();
  run_shared(arguments.hidden);
  const std::int64_t shared = now_ns();
  if (finalize.hook) finalize.hook();
  finalize.receiver();
  add_shared(output);
  times_ = {sent - start, placed - sent, computed - placed,
            (returned - returning) + (now_ns() - shared), shared - returned};
}

// The expert's rows, times sigmoid(x . gate) in f32 where there is a gate, rounded again.
void ModularKernel::run_shared(const TensorView& hidden) {
  if (shared_.experts == nullptr) return;
  const std::int64_t num_tokens = hidden.shape(0);
  const std::int64_t width = hidden.shape(1);
  Tensor& rows = scratch_->shared_rows;
  if (rows.view().num_dims() == 0 || rows.shape(0) != num_tokens) {
    rows = Tensor(DType::kBF16, {num_tokens, width});
    const std::size_t bytes = shared_.experts->workspace_bytes(num_tokens);
    if (bytes > scratch_->shared_workspace.size_bytes()) {
      scratch_->shared_workspace = AlignedBuffer(bytes);
    }
  }
  const std::array<std::int64_t, 1> first_row{0};
  const std::array<std::int32_t, 1> num_rows{static_cast<std::int32_t>(num_tokens)};
  shared_.experts->apply(
      {hidden, {}, schemes::kNone, first_row, num_rows}, rows,
      {scratch_->shared_workspace.data(), scratch_->shared_workspace.size_bytes()});
  if (!shared_.gate.has_value()) return;

  const Tensor logits(DType::kF32, {num_tokens, 1});
  router_logits(hidden, TensorView(shared_.gate.data(), shared_.gate.dtype(), {1, width}), logits);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const float scale = sigmoid(logits.as<float>()[t]);
    std::uint16_t* row = rows.as<std::uint16_t>() + t * width;
    for (std::int64_t h = 0; h < width; ++h) row[h] = bf16_from_f32(f32_from_bf16(row[h]) * scale);
  }
}

void ModularKernel::add_shared(const TensorView& output) {
  if (shared_.experts == nullptr) return;
  for (std::int64_t t = 0; t < output.shape(0); ++t) {
    std::uint16_t* to = output.as<std::uint16_t>() + t * output.stride(0);
    const std::uint16_t* row = scratch_->shared_rows.as<std::uint16_t>() + t * output.shape(1);
    for (std::int64_t h = 0; h < output.shape(1); ++h) {
      to[h] = bf16_from_f32(f32_from_bf16(to[h]) + f32_from_bf16(row[h]));
    }
  }
}

}  // namespace switchyard
