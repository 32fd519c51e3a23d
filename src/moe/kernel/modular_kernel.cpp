// SPDX-License-Identifier: Apache-2.0

#include "switchyard/modular_kernel.h"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <utility>

#include "switchyard/micro_batches.h"
#include "switchyard/permute.h"
#include "switchyard/router.h"
#include "switchyard/scale_layout.h"

#include "core/aligned_buffer.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/fail.h"
#include "core/format.h"
#include "cpu/weigh_reduce.h"
#include "moe/kernel/layer_checks.h"
#include "quant/exp.h"

namespace switchyard {

/// Memory of one micro-batch. What depends on T grows to the largest seen.
struct ModularKernel::Scratch {
  AlignedBuffer permuted;       ///< [M, H] as stored, where rows arrive one a token
  AlignedBuffer expert_output;  ///< [N or M, H] bf16
  AlignedBuffer reduced;        ///< [N, H] bf16, where rows arrive one a token
  AlignedBuffer expert_workspace;
  AlignedBuffer shared_workspace;
  AlignedBuffer shared_rows;    ///< [T, H] bf16
  AlignedBuffer shared_logits;  ///< [T, 1] f32
  std::int64_t shared_capacity = 0;
  StageTimes times;
};

/// What goes to finalize.
struct ModularKernel::Returned {
  TensorView rows;
  WeightAndReduce weight_and_reduce;
};

namespace {

/// Nanoseconds since the last look.
class Stopwatch {
 public:
  std::int64_t lap() {
    const std::int64_t now = now_ns();
    return now - std::exchange(start_, now);
  }

 private:
  std::int64_t start_ = now_ns();
};

// The receive part of a call: left to the next micro-batch, which runs it before it sends; without
// micro-batches run at once. Returns the nanoseconds that it took, wherever that was.
std::int64_t receive_later(std::function<void()> hook) {
  if (!hook) return 0;
  const auto ns = std::make_shared<std::int64_t>(-1);
  const auto once = [hook = std::move(hook), ns] {
    if (*ns >= 0) return;
    *ns = 0;
    Stopwatch watch;
    hook();
    *ns = watch.lap();
  };
  dbo_register_recv_hook(once);
  dbo_yield();
  once();  // the next one may have yielded without a send
  return *ns;
}

}  // namespace

ModularKernel::ModularKernel(std::unique_ptr<PrepareFinalize> prepare_finalize,
                             std::unique_ptr<Experts> experts, SharedExpert shared)
    : prepare_finalize_(std::move(prepare_finalize)),
      experts_(std::move(experts)),
      shared_(std::move(shared)) {
  check_parts(prepare_finalize_ != nullptr && experts_ != nullptr, shared_.experts != nullptr,
              shared_.order);
  const PrepareFinalize& prepare = *prepare_finalize_;
  check_shared_gate(shared_.gate, prepare.hidden());
  prepare_finalize_->post_init_setup(*experts_);
  const bool is_permuted = has_row_a_token(prepare.kind());
  const std::int64_t arrived = prepare.max_buffer_rows();
  const std::int64_t grouped =
      is_permuted ? checked_mul<std::int64_t>(arrived, prepare.num_topk()) : arrived;
  const auto row_bytes = static_cast<std::size_t>(prepare.hidden()) * sizeof(std::uint16_t);
  for (int i = 0; i < prepare.num_micro_batches(); ++i) {
    Scratch& scratch = scratch_.emplace_back();
    scratch.expert_output =
        AlignedBuffer(checked_mul(static_cast<std::size_t>(grouped), row_bytes));
    scratch.expert_workspace = AlignedBuffer(experts_->workspace_bytes(grouped));
    if (!is_permuted) continue;
    // Rows may arrive in any dtype of up to 4 bytes; pages that stay unused cost nothing.
    scratch.permuted = AlignedBuffer(checked_mul(static_cast<std::size_t>(grouped), 2 * row_bytes));
    scratch.reduced = AlignedBuffer(checked_mul(static_cast<std::size_t>(arrived), row_bytes));
  }
}

ModularKernel::~ModularKernel() = default;

std::size_t ModularKernel::workspace_bytes() const {
  std::size_t bytes = 0;
  for (const Scratch& scratch : scratch_) {
    bytes += scratch.permuted.size_bytes() + scratch.expert_output.size_bytes() +
             scratch.reduced.size_bytes() + scratch.expert_workspace.size_bytes();
  }
  return bytes;
}

ModularKernel::Scratch& ModularKernel::scratch_of(int micro_batch) {
  require(micro_batch >= 0 && micro_batch < prepare_finalize_->num_micro_batches(),
          Errc::kInvalidArgument, "modular_kernel: micro_batch is {}, must be from 0 to {}",
          micro_batch, prepare_finalize_->num_micro_batches() - 1);
  return scratch_[static_cast<std::size_t>(micro_batch)];
}

const StageTimes& ModularKernel::times(int micro_batch) const {
  return const_cast<ModularKernel*>(this)->scratch_of(micro_batch).times;
}

void ModularKernel::apply(const PrepareArguments& given, const TensorView& output) {
  check_call(output, given.hidden.shape(0), prepare_finalize_->hidden(), given.weighs_in_place,
             shared_.experts != nullptr);
  PrepareArguments arguments = given;
  arguments.defer_input_quant |= experts_->expects_unquantized_inputs();
  Scratch& scratch = scratch_of(arguments.micro_batch);
  StageTimes times;
  Stopwatch watch;
  if (shared_experts_order() == SharedExpertsOrder::kNoOverlap) {
    run_shared(arguments.hidden, scratch);
    times.shared_ns = watch.lap();
  }
  dbo_maybe_run_recv_hook();
  watch.lap();
  Pending<Prepared> prepare = prepare_finalize_->prepare_async(arguments);
  times.dispatch_ns = watch.lap();
  times.place_ns = receive_later(std::move(prepare.hook));
  watch.lap();
  const Prepared prepared = prepare.receiver();
  times.place_ns += watch.lap();
  const Returned expert_output = run_experts(arguments, prepared);
  times.experts_ns = watch.lap();

  dbo_maybe_run_recv_hook();
  watch.lap();
  Pending<void> finalize = return_results(
      {output, expert_output.rows, expert_output.weight_and_reduce, arguments.micro_batch});
  times.combine_ns = watch.lap();
  if (shared_experts_order() == SharedExpertsOrder::kMkInternalOverlapped) {
    try {
      run_shared(arguments.hidden, scratch);
    } catch (...) {
      finalize.receiver();  // every rank's results are under way: the call ends as on the peers
      throw;
    }
    times.shared_ns = watch.lap();
  }
  times.combine_ns += receive_later(std::move(finalize.hook));
  watch.lap();
  finalize.receiver();
  add_shared(output, scratch);
  times.combine_ns += watch.lap();
  scratch.times = times;
}

// Peers wait for these rows: when the experts fail they must learn of it.
ModularKernel::Returned ModularKernel::run_experts(const PrepareArguments& arguments,
                                                   const Prepared& prepared) try {
  Scratch& scratch = scratch_[static_cast<std::size_t>(arguments.micro_batch)];
  Returned returned;
  if (has_row_a_token(prepare_finalize_->kind())) {
    returned = {run_permuted(prepared, scratch), WeightAndReduce::no_op()};
  } else {
    returned.rows = run_grouped(prepared.experts, scratch);
  }
  if (inspector_) inspector_(prepared, returned.rows);
  return returned;
} catch (const std::exception& error) {
  prepare_finalize_->abandon(arguments.micro_batch,
                             fmt::format("its experts ended with: {}", error.what()));
  throw;
} catch (...) {
  prepare_finalize_->abandon(arguments.micro_batch, "its experts ended with an unknown exception");
  throw;
}

Pending<void> ModularKernel::return_results(const FinalizeArguments& arguments) try {
  return prepare_finalize_->finalize_async(arguments);
} catch (const std::exception& error) {
  prepare_finalize_->abandon(arguments.micro_batch,
                             fmt::format("its finalize ended with: {}", error.what()));
  throw;
}

TensorView ModularKernel::run_grouped(const ExpertRows& rows, Scratch& scratch) {
  const TensorView output(scratch.expert_output.data(), DType::kBF16,
                          {rows.rows.shape(0), rows.rows.shape(1)});
  const auto is_empty = [](std::int32_t count) { return count == 0; };
  if (std::all_of(rows.num_rows.begin(), rows.num_rows.end(), is_empty)) return output;
  experts_->apply(rows, output,
                  {scratch.expert_workspace.data(), scratch.expert_workspace.size_bytes()});
  return output;
}

// A row a token: each row to this rank's experts that want it, and their weighted sum back.
TensorView ModularKernel::run_permuted(const Prepared& prepared, Scratch& scratch) {
  const ExpertRows& arrived = prepared.experts;
  const std::int64_t num_rows = arrived.rows.shape(0);
  const std::int64_t width = arrived.rows.shape(1);
  const TensorView& ids = prepared.topk_ids;
  PermuteOptions options;
  options.expert_map = prepare_finalize_->expert_map();
  options.alignment = 1;
  PermuteMemory memory;
  memory.x =
      TensorView(scratch.permuted.data(), arrived.rows.dtype(), {num_rows * ids.shape(1), width});
  Tensor linear_scales;
  if (arrived.scale_layout == ScaleLayout::kSwizzled) {
    linear_scales = unswizzle_scales(arrived.scales, num_rows, num_scales(arrived.scheme, width));
  }
  const Permuted permuted =
      permute(arrived.rows, linear_scales.view().has_value() ? linear_scales : arrived.scales, ids,
              prepare_finalize_->num_local_experts(), options, memory);
  const TensorView output =
      run_grouped(permuted.expert_rows(arrived.scheme, arrived.tensor_scale), scratch);
  const TensorView reduced(scratch.reduced.data(), DType::kBF16, {num_rows, width});
  unpermute_and_reduce(output, permuted.plan, prepared.topk_weights, reduced);
  return reduced;
}

// The expert's rows; where there is a gate times sigmoid(x . gate), in f32, rounded again.
void ModularKernel::run_shared(const TensorView& hidden, Scratch& scratch) {
  const std::int64_t num_tokens = hidden.shape(0);
  const std::int64_t width = hidden.shape(1);
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

void ModularKernel::add_shared(const TensorView& output, const Scratch& scratch) {
  if (shared_.experts == nullptr) return;
  const std::int64_t width = output.shape(1);
  for (std::int64_t t = 0; t < output.shape(0); ++t) {
    std::uint16_t* to = output.as<std::uint16_t>() + t * output.stride(0);
    const void* const terms[] = {to, scratch.shared_rows.as<std::uint16_t>() + t * width};
    weigh_reduce_row(terms, DType::kBF16, nullptr, 2, width, to, DType::kBF16);
  }
}

}  // namespace switchyard
