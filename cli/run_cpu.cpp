// SPDX-License-Identifier: Apache-2.0

#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"

#include "run_layer.h"

namespace switchyard::cli {
namespace {

class CpuLayer final : public LayerTarget {
 public:
  explicit CpuLayer(const LayerSetup& setup) : setup_(setup) {
    const auto& [kind, config, intermediate_scale] = setup.run_config;
    ExpertOptions expert_options{setup.run_config.intermediate(), setup.config.activation};
    if (intermediate_scale) {
      expert_options.intermediate_scale = TensorView::of(&*intermediate_scale, {1});
    }
    SharedExpert shared;
    if (setup.weights.shared.has_value()) {
      // Shared experts are not dispatched, so nothing is quantized for them.
      shared.experts = make_experts(setup.options.experts, setup.weights.shared.view(),
                                    {{setup.run_config.dtype()}});
      shared.gate = setup.weights.shared_gate.view();
    }
    kernel_ = std::make_unique<ModularKernel>(
        make_prepare_finalize(kind, setup.group, config),
        make_experts(setup.options.experts, setup.weights.experts.view(), expert_options),
        std::move(shared));
  }

  std::array<std::int64_t, kNumStages> apply(const PrepareArguments& arguments,
                                             const TensorView& output, RankResult* last) override {
    if (last != nullptr) {
      const ExchangeMemory memory = kernel_->prepare_finalize().memory();
      last->window_bytes = static_cast<std::int64_t>(memory.window_bytes);
      last->workspace_bytes =
          static_cast<std::int64_t>(memory.receive_bytes + kernel_->workspace_bytes());
      kernel_->set_inspector([&, last](const Prepared& prepared, const TensorView& expert_output) {
        inspect(arguments, prepared, expert_output, *last);
      });
    }
    const int num_parts = setup_.options.micro_batches;
    apply_overlapped(*kernel_, arguments, output, num_parts);
    kernel_->set_inspector({});
    std::array<std::int64_t, kNumStages> sample{};
    for (int m = 0; m < num_parts; ++m) {
      const StageTimes& times = kernel_->times(m);
      const std::array<std::int64_t, kNumStages> part{0,
                                                      times.dispatch_ns,
                                                      times.place_ns,
                                                      times.experts_ns,
                                                      times.combine_ns,
                                                      times.shared_ns};
      for (std::size_t stage = 0; stage < kNumStages; ++stage) sample[stage] += part[stage];
    }
    return sample;
  }

 private:
  // Runs once per micro-batch.
  void inspect(const PrepareArguments& arguments, const Prepared& prepared,
               const TensorView& expert_output, RankResult& result) const {
    const TensorView& counts = prepared.experts.num_rows;
    add_rows(setup_, prepared.host->num_rows,
             {counts.as<std::int32_t>(), static_cast<std::size_t>(counts.num_elements())}, result);
    const WireBytes bytes = kernel_->prepare_finalize().wire_bytes(dbo_current_micro_batch());
    result.dispatch_bytes += bytes.dispatch;
    result.combine_bytes += bytes.combine;
    const int micro_batch = dbo_current_micro_batch();
    ServedRows served{prepared.experts, prepared.topk_ids, expert_output,
                      kernel_->prepare_finalize().row_origins(micro_batch)};
    if (tamper_with_rows) tamper_with_rows(served);
    for (const ReceivedRow& row : describe_rows(served, setup_.config.hidden, micro_batch)) {
      result.received.push_back(row);
    }
    if (!setup_.options.dump.empty()) dump_rows(setup_, arguments, served);
  }

  LayerSetup setup_;
  ExchangeMemory memory_;
  std::unique_ptr<ModularKernel> kernel_;
};

}  // namespace

std::unique_ptr<LayerTarget> make_cpu_layer(const LayerSetup& setup) {
  return std::make_unique<CpuLayer>(setup);
}

}  // namespace switchyard::cli
