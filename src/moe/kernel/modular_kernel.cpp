// SPDX-License-Identifier: Apache-2.0
//
// modular_kernel.cpp: the calls of a layer in order, their memory, and who learns of a failure.
// What happens to rows is in modular_kernel_rows.cpp.

#include "switchyard/modular_kernel.h"

#include <exception>
#include <utility>

#include "switchyard/micro_batches.h"

#include "core/clock.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "moe/kernel/communication_order.h"
#include "moe/kernel/layer_checks.h"
#include "moe/kernel/modular_kernel_memory.h"

namespace switchyard {
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
std::int64_t receive_later(std::function<void()> hook, Stream stream) {
  if (!hook) return 0;
  const auto ns = std::make_shared<std::int64_t>(-1);
  const auto once = [hook = std::move(hook), ns, stream] {
    if (*ns >= 0) return;
    *ns = 0;
    Stopwatch watch;
    launch_in_order(stream, hook);
    *ns = watch.lap();
  };
  dbo_register_recv_hook(once);
  dbo_yield();
  once();  // the next one may have yielded without a send
  return *ns;
}

}  // namespace

ModularKernel::ModularKernel(std::shared_ptr<PrepareFinalize> prepare_finalize,
                             std::shared_ptr<Experts> experts, SharedExpert shared)
    : prepare_finalize_(std::move(prepare_finalize)),
      experts_(std::move(experts)),
      shared_(std::move(shared)) {
  check_parts(prepare_finalize_.get(), experts_.get(), shared_);
  prepare_finalize_->post_init_setup(*experts_);
  allocate_memory();
  // On GPUs peers may start to wait in kernels only when nobody takes memory any more.
  if (device().is_cuda()) prepare_finalize_->group().barrier();
}

// The exchange first: on GPUs it waits for kernels, and for peers that may still read from here.
// Where others keep it, cudaFree waits for the kernels, and peers read only the exchange's windows.
ModularKernel::~ModularKernel() { prepare_finalize_.reset(); }

bool ModularKernel::is_capturable() const {
  const bool is_batched = prepare_finalize_->activation_format() == ActivationFormat::kBatched;
  return experts_->is_capturable(is_batched) &&
         (shared_.experts == nullptr || shared_.experts->is_capturable(false));
}

const ModularKernel::Scratch& ModularKernel::micro_batch_of(int micro_batch) const {
  require(micro_batch >= 0 && micro_batch < prepare_finalize_->num_micro_batches(),
          Errc::kInvalidArgument, "modular_kernel: micro_batch is {}, must be from 0 to {}",
          micro_batch, prepare_finalize_->num_micro_batches() - 1);
  return scratch_[static_cast<std::size_t>(micro_batch)];
}

ModularKernel::Scratch& ModularKernel::scratch_of(int micro_batch) {
  Scratch& scratch = const_cast<Scratch&>(micro_batch_of(micro_batch));
  if (!scratch.expert_output.view().has_value()) allocate_scratch(scratch);
  return scratch;
}

const StageTimes& ModularKernel::times(int micro_batch) const {
  return micro_batch_of(micro_batch).times;
}

void ModularKernel::observe(LayerStage stage) const {
  if (observer_) observer_(stage);
}

void ModularKernel::apply(const PrepareArguments& given, const TensorView& output, Stream stream) {
  require_stream("modular_kernel", device(), stream);
  require_device("modular_kernel", device(), {{"hidden", given.hidden}, {"output", output}});
  check_call(output, given.hidden.shape(0), prepare_finalize_->hidden(), given.weighs_in_place,
             shared_.experts != nullptr);
  PrepareArguments arguments = given;
  arguments.defer_input_quant |= experts_->expects_unquantized_inputs();
  Scratch& scratch = scratch_of(arguments.micro_batch);
  StageTimes times;
  Stopwatch watch;
  if (shared_experts_order() == SharedExpertsOrder::kNoOverlap) {
    run_shared(arguments.hidden, scratch, stream);
    times.shared_ns = watch.lap();
  }
  const Prepared prepared = prepare(arguments, stream, times);
  observe(LayerStage::kPrepare);
  watch.lap();
  const Returned returned = run_experts(arguments, prepared, stream);
  times.experts_ns = watch.lap();
  observe(LayerStage::kExperts);
  FinalizeArguments results{output, returned.rows, returned.weight_and_reduce,
                            arguments.micro_batch};
  if (shared_.experts != nullptr) {
    results.shared = rows_of_shared(arguments.hidden.shape(0), scratch);
  }
  finalize(results, arguments.hidden, stream, times);
  observe(LayerStage::kCombine);
  scratch.times = times;
}

// One kernel serves both phases on a GPU, unless another micro-batch computes between them.
Prepared ModularKernel::prepare(const PrepareArguments& arguments, Stream stream,
                                StageTimes& times) {
  Stopwatch watch;
  if (device().is_cuda() && !dbo_enabled()) {
    const Prepared prepared = prepare_finalize_->prepare(arguments, stream);
    times.dispatch_ns = watch.lap();
    return prepared;
  }
  dbo_maybe_run_recv_hook();
  watch.lap();
  Pending<Prepared> pending;
  launch_in_order(stream, [&] { pending = prepare_finalize_->prepare_async(arguments, stream); });
  times.dispatch_ns = watch.lap();
  times.place_ns = receive_later(std::move(pending.hook), stream);
  watch.lap();
  const Prepared prepared = pending.receiver();
  times.place_ns += watch.lap();
  return prepared;
}

void ModularKernel::finalize(const FinalizeArguments& arguments, const TensorView& hidden,
                             Stream stream, StageTimes& times) {
  const bool overlaps_shared = shared_experts_order() == SharedExpertsOrder::kMkInternalOverlapped;
  Stopwatch watch;
  dbo_maybe_run_recv_hook();
  watch.lap();
  Pending<void> pending;
  launch_in_order(stream, [&] { pending = return_results(arguments, overlaps_shared, stream); });
  times.combine_ns = watch.lap();
  if (overlaps_shared) {
    observe(LayerStage::kCombine);
    try {
      run_shared(hidden, scratch_of(arguments.micro_batch), stream);
    } catch (...) {
      pending.receiver();  // every rank's results are under way: the call ends as on the peers
      throw;
    }
    times.shared_ns = watch.lap();
  }
  times.combine_ns += receive_later(std::move(pending.hook), stream);
  watch.lap();
  if (pending.receiver) pending.receiver();
  times.combine_ns += watch.lap();
}

// Peers wait for these rows: when the experts fail they must learn of it.
ModularKernel::Returned ModularKernel::run_experts(const PrepareArguments& arguments,
                                                   const Prepared& prepared, Stream stream) try {
  Scratch& scratch = scratch_of(arguments.micro_batch);
  Returned returned;
  if (is_token_major(prepare_finalize_->kind())) {
    returned = {run_permuted(prepared, scratch, stream), WeightAndReduce::no_op()};
  } else {
    returned.rows = run_grouped(prepared.experts, scratch, stream);
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

// Without anything to do between the phases a GPU needs one kernel; then nothing is pending.
Pending<void> ModularKernel::return_results(const FinalizeArguments& arguments,
                                            bool overlaps_shared, Stream stream) try {
  if (device().is_cpu() || dbo_enabled() || overlaps_shared) {
    return prepare_finalize_->finalize_async(arguments, stream);
  }
  prepare_finalize_->finalize(arguments, stream);
  return {};
} catch (const std::exception& error) {
  prepare_finalize_->abandon(arguments.micro_batch,
                             fmt::format("its finalize ended with: {}", error.what()));
  throw;
}

}  // namespace switchyard
