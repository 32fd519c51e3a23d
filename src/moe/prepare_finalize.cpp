// SPDX-License-Identifier: Apache-2.0
//
// Both classes are an Exchange with a layout and a group: LowLatency over all ranks in the batched
// layout, Local over this rank alone in the expanded one. What is left is the scheme that no sender
// can apply, one scale for a whole tensor: it is applied to the rows that arrived.

#include "switchyard/prepare_finalize.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/aligned_buffer.h"
#include "core/fail.h"
#include "core/format.h"
#include "engine/local_engine.h"
#include "quant/bf16.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

constexpr float kE4M3Max = 448.0f;

ExchangeConfig exchange_config(const PrepareFinalizeConfig& config, Layout layout) {
  ExchangeConfig result;
  result.num_experts = config.num_experts;
  result.num_topk = config.num_topk;
  result.hidden = config.hidden;
  result.max_tokens_per_rank = config.max_tokens_per_rank;
  result.layout = layout;
  result.scheme = config.scheme.group == ScaleGroup::kTensor ? schemes::kNone : config.scheme;
  result.reduce = config.reduce;
  result.sends_weights = config.reduce == Reduce::kPerRank;
  result.max_in_flight = config.num_micro_batches;
  return result;
}

class ExchangePrepareFinalize final : public PrepareFinalize {
 public:
  ExchangePrepareFinalize(std::string_view name, const Group& group,
                          const PrepareFinalizeConfig& config, Layout layout)
      : name_(name),
        config_(config),
        layout_(layout),
        group_(group),
        num_ranks_(group.size()),
        exchange_(group, exchange_config(config, layout)),
        batches_(static_cast<std::size_t>(config.num_micro_batches)) {
    if (config.scheme.group != ScaleGroup::kTensor) return;
    for (MicroBatch& batch : batches_) {
      batch.quantized =
          AlignedBuffer(static_cast<std::size_t>(exchange_.max_buffer_rows() * config.hidden));
    }
  }

  std::string_view name() const override { return name_; }
  ActivationFormat activation_format() const override {
    return layout_ == Layout::kBatched ? ActivationFormat::kBatched : ActivationFormat::kStandard;
  }
  std::optional<DType> topk_indices_dtype() const override { return std::nullopt; }
  std::optional<std::int64_t> max_num_tokens_per_rank() const override {
    return config_.max_tokens_per_rank;
  }
  int num_dispatchers() const override { return num_ranks_; }
  bool output_is_reduced() const override { return true; }
  bool supports_async() const override { return true; }
  std::int64_t hidden() const override { return config_.hidden; }
  std::int64_t max_buffer_rows() const override { return exchange_.max_buffer_rows(); }

  Pending<Prepared> prepare_async(const PrepareArguments& arguments) override;
  Pending<void> finalize_async(const TensorView& output, const TensorView& expert_output,
                               int micro_batch) override;
  void abandon(int micro_batch, const std::string& reason) override {
    MicroBatch& batch = batch_of(micro_batch);
    if (num_ranks_ > 1) return group_.abort(reason);
    exchange_.release(batch.handle);
    batch.is_busy = false;
  }
  std::vector<RowOrigin> row_origins(int micro_batch) const override {
    return exchange_.row_origins(batch_of(micro_batch).handle);
  }
  WireBytes wire_bytes(int micro_batch) const override {
    return exchange_.wire_bytes(batch_of(micro_batch).handle);
  }

 private:
  struct MicroBatch {
    bool is_busy = false;  ///< prepared and not finalized
    DispatchHandle handle;
    Dispatched dispatched;
    Tensor weighted;  ///< hidden x weight, when the weight goes onto the input
    Tensor ones;
    AlignedBuffer quantized;  ///< for one scale a tensor
    float tensor_scale = 0.0f;
  };

  const MicroBatch& batch_of(int micro_batch) const {
    require(micro_batch >= 0 && micro_batch < config_.num_micro_batches, Errc::kInvalidArgument,
            "{}: micro_batch is {}, must be from 0 to {}", name_, micro_batch,
            config_.num_micro_batches - 1);
    return batches_[static_cast<std::size_t>(micro_batch)];
  }
  MicroBatch& batch_of(int micro_batch) {
    return const_cast<MicroBatch&>(std::as_const(*this).batch_of(micro_batch));
  }
  void weigh_input(MicroBatch& batch, const PrepareArguments& arguments) const;
  void receive(MicroBatch& batch) {
    batch.dispatched = exchange_.dispatch_receive(batch.handle);
    if (config_.scheme.group == ScaleGroup::kTensor) quantize_received(batch);
  }
  void quantize_received(MicroBatch& batch) const;

  std::string name_;
  PrepareFinalizeConfig config_;
  Layout layout_;
  Group group_;
  int num_ranks_;
  Exchange exchange_;
  std::vector<MicroBatch> batches_;
};

// The product is f32, rounded once to bf16, as a tensor of its own: the caller's stays as it was.
void ExchangePrepareFinalize::weigh_input(MicroBatch& batch,
                                          const PrepareArguments& arguments) const {
  require(config_.num_topk == 1, Errc::kInvalidArgument,
          "{}: apply_router_weight_on_input is set with {} experts a token, must be 1", name_,
          config_.num_topk);
  const TensorView& hidden = arguments.hidden;
  const TensorView& weights = arguments.topk_weights;
  require(hidden.num_dims() == 2 && hidden.dtype() == DType::kBF16 && hidden.is_contiguous() &&
              weights.dtype() == DType::kF32 && weights.is_contiguous() &&
              weights.num_elements() == hidden.shape(0),
          Errc::kInvalidArgument,
          "{}: hidden is {} and topk_weights {}, must be bf16 [T, H] and f32 [T, 1]", name_, hidden,
          weights);
  batch.weighted = Tensor(DType::kBF16, {hidden.shape(0), hidden.shape(1)});
  batch.ones = Tensor(DType::kF32, {hidden.shape(0), 1});
  const std::int64_t width = hidden.shape(1);
  for (std::int64_t i = 0; i < hidden.num_elements(); ++i) {
    const float product =
        f32_from_bf16(hidden.as<std::uint16_t>()[i]) * weights.as<float>()[i / width];
    batch.weighted.as<std::uint16_t>()[i] = bf16_from_f32(product);
  }
  std::fill_n(batch.ones.as<float>(), hidden.shape(0), 1.0f);
}

Pending<Prepared> ExchangePrepareFinalize::prepare_async(const PrepareArguments& arguments) {
  MicroBatch& batch = batch_of(arguments.micro_batch);
  require(!batch.is_busy, Errc::kInvalidArgument,
          "{}: micro_batch {} was prepared and not finalized; finalize it first", name_,
          arguments.micro_batch);
  const bool on_input = arguments.apply_router_weight_on_input;
  if (on_input) weigh_input(batch, arguments);
  batch.handle = exchange_.dispatch_send(on_input ? batch.weighted.view() : arguments.hidden,
                                         arguments.topk_ids,
                                         on_input ? batch.ones.view() : arguments.topk_weights);
  batch.is_busy = true;
  const auto received = std::make_shared<bool>(false);
  Pending<Prepared> pending;
  pending.hook = [this, &batch, received] {
    receive(batch);
    *received = true;
  };
  pending.receiver = [this, &batch, received] {
    if (!*received) receive(batch);
    return Prepared{batch.dispatched.experts, batch.dispatched.num_rows,
                    batch.dispatched.expert_load};
  };
  return pending;
}

// The largest magnitude of each row over 448, then the largest of those: division is monotone, so
// this is the whole tensor's. Rows beyond the counts are neither read nor written.
void ExchangePrepareFinalize::quantize_received(MicroBatch& batch) const {
  ExpertRows& experts = batch.dispatched.experts;
  const std::int64_t hidden = config_.hidden;
  const TensorView rows = experts.rows;
  const auto for_each_row = [&](auto&& action) {
    for (std::size_t e = 0; e < experts.num_rows.size(); ++e) {
      for (std::int64_t i = 0; i < experts.num_rows[e]; ++i) action(experts.first_row[e] + i);
    }
  };
  batch.tensor_scale = 0.0f;
  for_each_row([&](std::int64_t row) {
    const float amax = max_magnitude(rows.as<std::uint16_t>() + row * hidden, DType::kBF16, hidden);
    batch.tensor_scale = std::max(batch.tensor_scale, amax / kE4M3Max);
  });
  for_each_row([&](std::int64_t row) {
    quantize_row(config_.scheme, rows.as<std::uint16_t>() + row * hidden, DType::kBF16, hidden,
                 batch.quantized.data() + row * hidden, nullptr, batch.tensor_scale);
  });
  experts.scheme = config_.scheme;
  experts.rows = TensorView(batch.quantized.data(), config_.scheme.dtype, {rows.shape(0), hidden});
  experts.scales = TensorView::of(&batch.tensor_scale, {1});
}

Pending<void> ExchangePrepareFinalize::finalize_async(const TensorView& output,
                                                      const TensorView& expert_output,
                                                      int micro_batch) {
  MicroBatch& batch = batch_of(micro_batch);
  exchange_.check_output(batch.handle, output);
  exchange_.combine_send(batch.handle, expert_output);
  const auto received = std::make_shared<bool>(false);
  Pending<void> pending;
  pending.hook = [this, &batch, received, output] {
    exchange_.combine_receive(batch.handle, output);
    batch.is_busy = false;
    *received = true;
  };
  pending.receiver = [hook = pending.hook, received] {
    if (!*received) hook();
  };
  return pending;
}

}  // namespace

Prepared PrepareFinalize::prepare(const PrepareArguments& arguments) {
  return prepare_async(arguments).receiver();
}

void PrepareFinalize::finalize(const TensorView& output, const TensorView& expert_output,
                               int micro_batch) {
  finalize_async(output, expert_output, micro_batch).receiver();
}

std::unique_ptr<PrepareFinalize> make_low_latency(const Group& group,
                                                  const PrepareFinalizeConfig& config) {
  return std::make_unique<ExchangePrepareFinalize>("low_latency", group, config, Layout::kBatched);
}

std::unique_ptr<PrepareFinalize> make_local(const PrepareFinalizeConfig& config) {
  constexpr std::int64_t kNobodyToWaitForMs = 1000;
  const Group alone(make_local_engines(1, kNobodyToWaitForMs).front());
  return std::make_unique<ExchangePrepareFinalize>("local", alone, config, Layout::kExpanded);
}

ExchangeMemory prepare_finalize_memory(std::string_view name, const PrepareFinalizeConfig& config,
                                       int num_ranks, int rank) {
  require(name == "low_latency" || name == "local", Errc::kInvalidArgument,
          "prepare_finalize_memory: class \"{}\", must be low_latency or local", name);
  const bool is_local = name == "local";
  ExchangeMemory memory =
      exchange_memory(exchange_config(config, is_local ? Layout::kExpanded : Layout::kBatched),
                      is_local ? 1 : num_ranks, is_local ? 0 : rank);
  if (config.scheme.group == ScaleGroup::kTensor) {
    memory.receive_bytes += memory.receive_bytes / 2;  // an e4m3 row beside each bf16 row
  }
  return memory;
}

}  // namespace switchyard
