// SPDX-License-Identifier: Apache-2.0

#include "moe/prepare/exchange_device_prepare_finalize.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "exchange/exchange_shape.h"
#include "moe/kernel/split_call.h"
#include "plan/permute_views.h"

namespace switchyard {
namespace {

// On GPUs receive buffers always have their largest size.
ExchangeConfig device_exchange_config(const PrepareRecipe& recipe,
                                      const PrepareFinalizeConfig& config, bool is_plain) {
  ExchangeConfig result = exchange_config_of(recipe, config, is_plain);
  result.worst_case_rows = true;
  result.max_in_flight = 1;
  return result;
}

std::int64_t buffer_rows(const ExchangeConfig& config, const Group& group) {
  return make_exchange_shape(config, group.size(), group.rank()).max_buffer_rows;
}

// The output before anything is sent: combine would find it wrong only when it receives.
void check_output(const TensorView& output, std::int64_t num_tokens, std::int64_t hidden) {
  check_matrix(
      output,
      {"finalize", "output", {DType::kBF16, DType::kF16, DType::kF32}, num_tokens, hidden, true});
}

}  // namespace

ExchangeDevicePrepareFinalize::ExchangeDevicePrepareFinalize(
    const PrepareRecipe& recipe, const Group& group, const PrepareFinalizeConfig& config,
    const DevicePrepareFinalizeOptions& options)
    : recipe_(recipe),
      config_(config),
      group_(group),
      exchange_options_(options.exchange),
      ownership_{config.num_experts, group.size()} {
  check_prepare_config(recipe, config, group.size());
  max_buffer_rows_ = buffer_rows(device_exchange_config(recipe, config, false), group);
  allocate_memory();
  make_exchanges(false);
  if (options.defers_input_quant && wire_scheme_of(config).is_quantized()) make_exchanges(true);
}

// Before the exchange: once that is made peers may already wait in kernels, and the runtime waits
// for kernels before it gives memory.
void ExchangeDevicePrepareFinalize::allocate_memory() {
  const std::int64_t num_experts = config_.num_experts;
  std::vector<std::int32_t> map(static_cast<std::size_t>(num_experts) + 1, -1);
  const auto first = map.begin() + ownership_.first(group_.rank());
  std::iota(first, first + num_local_experts(), 0);
  expert_map_ = tensors_.allocate_copy(DType::kI32, {num_experts + 1}, map);
  if (!config_.global_to_physical.empty()) {
    physical_ = tensors_.allocate_copy(DType::kI32, {num_experts}, config_.global_to_physical);
  }
  if (config_.static_scale.has_value()) {
    static_scale_ = tensors_.allocate_copy<float>(DType::kF32, {1}, {*config_.static_scale});
  }
  const std::int64_t num_choices = config_.max_tokens_per_rank * config_.num_topk;
  ones_ = tensors_.allocate_copy(DType::kF32, {num_choices},
                                 std::vector<float>(static_cast<std::size_t>(num_choices), 1.0f));
  batches_.resize(static_cast<std::size_t>(config_.num_micro_batches));
  for (MicroBatch& batch : batches_) allocate_batch_memory(batch);
  tensors_.close();
}

void ExchangeDevicePrepareFinalize::allocate_batch_memory(MicroBatch& batch) {
  const std::int64_t num_tokens = config_.max_tokens_per_rank;
  const std::int64_t num_topk = config_.num_topk;
  if (num_topk == 1) batch.weighted = tensors_.allocate(DType::kF32, {num_tokens, config_.hidden});
  if (physical_.has_value()) {
    batch.physical_ids = tensors_.allocate(DType::kI32, {num_tokens, num_topk});
  }
  if (renames_received()) {
    const bool is_elastic = recipe_.kind == PrepareKind::kElasticDecode;
    batch.topk_ids =
        tensors_.allocate(is_elastic ? DType::kI64 : DType::kI32, {max_buffer_rows_, num_topk});
  }
  if (marks_rows()) {
    batch.topk_ids = tensors_.allocate(DType::kI64, {max_buffer_rows_, 1});
    batch.aligned_counts = tensors_.allocate(DType::kI32, {num_local_experts()});
    batch.end = tensors_.allocate(DType::kI32, {1});
  }
  const ExchangeConfig wire = device_exchange_config(recipe_, config_, false);
  if (wire.scheme == config_.scheme) return;
  batch.quantizer.emplace(wire, config_, max_buffer_rows_, num_local_experts(), static_scale_,
                          tensors_);
}

void ExchangeDevicePrepareFinalize::make_exchanges(bool is_plain) {
  std::vector<std::unique_ptr<DeviceExchange>> made;
  for (std::size_t m = 0; m < batches_.size(); ++m) {
    made.push_back(std::make_unique<DeviceExchange>(
        group_, device_exchange_config(recipe_, config_, is_plain), exchange_options_));
  }
  exchanges_[is_plain] = std::move(made);
}

ExchangeDevicePrepareFinalize::MicroBatch& ExchangeDevicePrepareFinalize::batch_of(
    int micro_batch) {
  require(micro_batch >= 0 && micro_batch < config_.num_micro_batches, Errc::kInvalidArgument,
          "{}: micro_batch is {}, must be from 0 to {}", name(), micro_batch,
          config_.num_micro_batches - 1);
  return batches_[static_cast<std::size_t>(micro_batch)];
}

void ExchangeDevicePrepareFinalize::post_init_setup(const DeviceExperts& experts) {
  const bool packs =
      sends_packed_scales(recipe_, config_, experts.supports_packed_ue8m0_act_scales());
  const bool defers = experts.expects_unquantized_inputs() &&
                      wire_scheme_of(config_).is_quantized() && exchanges_[1].empty();
  if (!packs && !defers) return;
  for (const MicroBatch& batch : batches_) {
    require(batch.exchange == nullptr, Errc::kInvalidArgument,
            "{}: post_init_setup comes after prepare; call it before the first one", name());
  }
  if (packs) {
    config_.scheme.scale_format = ScaleFormat::kE8M0Packed;
    make_exchanges(false);
  }
  if (defers) make_exchanges(true);
}

QuantScheme ExchangeDevicePrepareFinalize::row_scheme(bool is_deferred) const {
  if (!is_deferred) return config_.scheme;
  const QuantScheme wire = wire_scheme_of(config_);
  return wire.is_quantized() ? schemes::kNone : wire;
}

DeviceExchange& ExchangeDevicePrepareFinalize::exchange_for(const DevicePrepareArguments& arguments,
                                                            bool is_deferred) const {
  const bool is_plain = is_deferred && wire_scheme_of(config_).is_quantized();
  require(!exchanges_[is_plain].empty(), Errc::kInvalidArgument,
          "{}: defer_input_quant is set in micro_batch {}, which takes an exchange of its own; set "
          "DevicePrepareFinalizeOptions::defers_input_quant",
          name(), arguments.micro_batch);
  return *exchanges_[is_plain][static_cast<std::size_t>(arguments.micro_batch)];
}

Pending<DevicePrepared> ExchangeDevicePrepareFinalize::prepare_async(
    const DevicePrepareArguments& arguments, Stream stream, Stream receive_stream) {
  MicroBatch& batch = batch_of(arguments.micro_batch);
  const Input input = begin(batch, arguments, stream);
  batch.handle = batch.exchange->dispatch_send(input.hidden, input.topk_ids, input.topk_weights,
                                               stream, input.options);
  sent(batch, arguments, stream);
  return split_call<DevicePrepared>(
      [this, &batch, receive_stream] {
        batch.dispatched = batch.exchange->dispatch_receive(batch.handle, receive_stream);
        arrived(batch, receive_stream);
      },
      [&batch] { return batch.prepared; });
}

DevicePrepared ExchangeDevicePrepareFinalize::prepare(const DevicePrepareArguments& arguments,
                                                      Stream stream) {
  MicroBatch& batch = batch_of(arguments.micro_batch);
  const Input input = begin(batch, arguments, stream);
  batch.dispatched = batch.exchange->dispatch(input.hidden, input.topk_ids, input.topk_weights,
                                              stream, input.options);
  batch.handle = batch.dispatched.handle;
  sent(batch, arguments, stream);
  arrived(batch, stream);
  return batch.prepared;
}

ExchangeDevicePrepareFinalize::MicroBatch& ExchangeDevicePrepareFinalize::busy_batch_of(
    int micro_batch) {
  MicroBatch& batch = batch_of(micro_batch);
  require(batch.is_busy, Errc::kInvalidArgument,
          "{}: nothing is prepared in micro_batch {}; prepare first", name(), micro_batch);
  return batch;
}

// The rows that combine takes; with [M, K, H] this rank's choices of each row are summed first.
TensorView ExchangeDevicePrepareFinalize::to_send(const MicroBatch& batch,
                                                  const DeviceFinalizeArguments& arguments,
                                                  Stream stream) const {
  const TensorView& arrived = batch.dispatched.rows;
  const std::int64_t num_rows =
      arrived.num_dims() == 3 ? arrived.shape(0) * arrived.shape(1) : arrived.shape(0);
  const auto [rows, needs_sum] = check_returned_rows(
      recipe_, config_, num_rows, arguments.expert_output, arguments.weight_and_reduce);
  if (!needs_sum) return rows;
  const TensorView& reduced = arguments.reduced;
  check_matrix(reduced, {"finalize", "reduced", {rows.dtype()}, num_rows, config_.hidden});
  const DevicePrepared& prepared = batch.prepared;
  if (arguments.weight_and_reduce.kind == WeightAndReduceKind::kContiguous) {
    weight_and_reduce(
        arguments.weight_and_reduce,
        {rows, prepared.topk_weights, prepared.topk_ids, expert_map_, batch.is_weighted}, reduced,
        {}, stream);
    return reduced;
  }
  // delegate: one chain in f32, rounded once, as everywhere in this library.
  const TensorView& ids = prepared.topk_ids;
  const std::int64_t row_bytes = config_.hidden * bits_of(rows.dtype()) / 8;
  cuda::ReduceArgs args;
  args.sum_source = cuda::SumSource::kContiguous;
  args.ids = id_table("finalize", ids);
  args.lookup = expert_lookup("finalize", expert_map_);
  args.skips_padding = true;
  if (!batch.is_weighted) {
    args.weights = prepared.topk_weights.as<float>();
    args.weight_token_stride = config_.num_topk;
    args.weight_choice_stride = 1;
  }
  args.rows = {rows.as<std::byte>(), ids.num_elements(), static_cast<std::size_t>(row_bytes),
               row_bytes};
  args.out = {reduced.as<std::byte>(), num_rows, static_cast<std::size_t>(row_bytes), row_bytes};
  args.hidden = config_.hidden;
  args.row_dtype = rows.dtype();
  args.out_dtype = rows.dtype();
  cuda_module().reduce_rows(args, stream);
  return reduced;
}

// Rows that are weighted already count as they are.
DeviceCombineOptions ExchangeDevicePrepareFinalize::combine_options(
    const MicroBatch& batch, const DeviceFinalizeArguments& arguments) const {
  DeviceCombineOptions options;
  options.shared = arguments.shared;
  options.rows_are_weighted = arguments.weight_and_reduce.kind == WeightAndReduceKind::kNoOp;
  if (!options.rows_are_weighted || batch.exchange->config().reduce != Reduce::kPerExpert) {
    return options;
  }
  options.topk_weights =
      TensorView(ones_.data(), DType::kF32, {batch.num_tokens, std::int64_t{config_.num_topk}});
  return options;
}

Pending<void> ExchangeDevicePrepareFinalize::finalize_async(
    const DeviceFinalizeArguments& arguments, Stream stream, Stream receive_stream) {
  MicroBatch& batch = busy_batch_of(arguments.micro_batch);
  const TensorView output = arguments.output;
  check_output(output, batch.num_tokens, config_.hidden);
  const DeviceCombineOptions options = combine_options(batch, arguments);
  batch.exchange->combine_send(batch.handle, to_send(batch, arguments, stream), stream, options);
  return split_call<void>(
      [&batch, output, options, receive_stream] {
        batch.exchange->combine_receive(batch.handle, output, receive_stream, options);
        batch.is_busy = false;
      },
      [] {});
}

void ExchangeDevicePrepareFinalize::finalize(const DeviceFinalizeArguments& arguments,
                                             Stream stream) {
  MicroBatch& batch = busy_batch_of(arguments.micro_batch);
  check_output(arguments.output, batch.num_tokens, config_.hidden);
  const DeviceCombineOptions options = combine_options(batch, arguments);
  batch.exchange->combine(batch.handle, to_send(batch, arguments, stream), arguments.output, stream,
                          options);
  batch.is_busy = false;
}

void ExchangeDevicePrepareFinalize::abandon(int micro_batch, const std::string& reason) {
  MicroBatch& batch = batch_of(micro_batch);
  if (group_.size() > 1) return group_.abort(reason);
  busy_batch_of(micro_batch).exchange->release(batch.handle);
  batch.is_busy = false;
}

ExchangeMemory ExchangeDevicePrepareFinalize::memory() const {
  ExchangeMemory memory{0, tensors_.size_bytes()};
  for (const auto& exchanges : exchanges_) {
    for (const auto& exchange : exchanges) {
      const ExchangeMemory own = exchange->memory();
      memory.window_bytes += own.window_bytes;
      memory.receive_bytes += own.receive_bytes;
    }
  }
  return memory;
}

void ExchangeDevicePrepareFinalize::check() const {
  for (const auto& exchanges : exchanges_) {
    for (const auto& exchange : exchanges) exchange->check();
  }
}

std::unique_ptr<DevicePrepareFinalize> make_device_prepare_finalize(
    PrepareKind kind, const Group& group, const PrepareFinalizeConfig& config,
    const DevicePrepareFinalizeOptions& options) {
  const PrepareRecipe& recipe = recipe_of(kind);
  if (kind != PrepareKind::kLocal) {
    return std::make_unique<ExchangeDevicePrepareFinalize>(recipe, group, config, options);
  }
  return std::make_unique<ExchangeDevicePrepareFinalize>(recipe, group_of_one(), config, options);
}

}  // namespace switchyard
