// SPDX-License-Identifier: Apache-2.0

#include "moe/prepare/exchange_prepare_finalize.h"

#include <numeric>

#include "switchyard/micro_batches.h"

#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "exchange/exchange_shape.h"
#include "moe/kernel/split_call.h"

namespace switchyard {
namespace {

// On GPUs receive buffers have their largest size, unless dispatches count on the host. Shapes that
// are fixed on CPUs are fixed there, too.
ExchangeConfig config_on(const ExchangeOptions& options, const PrepareRecipe& recipe,
                         const PrepareFinalizeConfig& config, bool is_plain) {
  ExchangeConfig result = exchange_config_of(recipe, config, is_plain);
  if (options.device.is_cpu()) return result;
  result.worst_case_rows = result.worst_case_rows || !options.exact_memory;
  return result;
}

std::int64_t buffer_rows(const ExchangeConfig& config, const Group& group) {
  return make_exchange_shape(config, group.size(), group.rank()).max_buffer_rows;
}

}  // namespace

ExchangePrepareFinalize::ExchangePrepareFinalize(const PrepareRecipe& recipe, const Group& group,
                                                 const PrepareFinalizeConfig& config,
                                                 const ExchangeOptions& options)
    : recipe_(recipe),
      config_(config),
      group_(group),
      exchange_options_(options),
      experts_(expert_holder_of(recipe, config, group.size(), group.rank())) {
  check_prepare_config(recipe, config, group.size());
  config_.num_micro_batches = num_micro_batches_of(recipe, config);
  max_buffer_rows_ = buffer_rows(config_on(exchange_options_, recipe, config, false), group);
  allocate_memory();
  make_exchanges(false);
  if (config.defers_input_quant && wire_scheme_of(config).is_quantized()) make_exchanges(true);
}

Tensor ExchangePrepareFinalize::allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor(dtype, shape, device());
  scratch_bytes_ += tensor.view().num_bytes();
  return tensor;
}

template <typename T>
Tensor ExchangePrepareFinalize::upload(DType dtype, const std::vector<T>& values) {
  const TensorView host(values.data(), dtype, {static_cast<std::int64_t>(values.size())});
  scratch_bytes_ += host.num_bytes();
  return copy_to(host, device());
}

// Before the exchange: once that is made peers may already wait in kernels, and the runtime waits
// for kernels before it gives memory.
void ExchangePrepareFinalize::allocate_memory() {
  std::vector<std::int32_t> map(static_cast<std::size_t>(config_.num_experts) + 1, -1);
  const auto first = map.begin() + experts_.first();
  std::iota(first, first + num_local_experts(), 0);
  expert_map_ = upload(DType::kI32, map);
  if (!config_.global_to_physical.empty()) {
    physical_ = upload(DType::kI32, config_.global_to_physical);
  }
  if (config_.static_scale.has_value()) {
    static_scale_ = upload(DType::kF32, std::vector<float>{*config_.static_scale});
  }
  const auto num_choices = static_cast<std::size_t>(config_.max_tokens_per_rank * config_.num_topk);
  ones_ = upload(DType::kF32, std::vector<float>(num_choices, 1.0f));
  batches_.resize(static_cast<std::size_t>(config_.num_micro_batches));
  for (MicroBatch& batch : batches_) allocate_batch_memory(batch);
}

void ExchangePrepareFinalize::allocate_batch_memory(MicroBatch& batch) {
  const std::int64_t num_tokens = config_.max_tokens_per_rank;
  const std::int64_t num_topk = config_.num_topk;
  if (num_topk == 1) batch.weighted = allocate(DType::kF32, {num_tokens, config_.hidden});
  if (physical_.view().has_value()) {
    batch.physical_ids = allocate(DType::kI32, {num_tokens, num_topk});
  }
  if (renames_received()) {
    const bool is_elastic = recipe_.kind == PrepareKind::kElasticDecode;
    batch.topk_ids = allocate(is_elastic ? DType::kI64 : DType::kI32, {max_buffer_rows_, num_topk});
  }
  if (device().is_cpu() && is_expert_major(recipe_.layout) && !marks_rows()) {
    batch.sent_ids = allocate(DType::kI64, {num_tokens, num_topk});
  }
  if (marks_rows()) {
    batch.topk_ids = allocate(DType::kI64, {max_buffer_rows_, 1});
    batch.aligned_counts = allocate(DType::kI32, {num_local_experts()});
    batch.end = allocate(DType::kI32, {1});
  }
  const ExchangeConfig wire = config_on(exchange_options_, recipe_, config_, false);
  if (wire.scheme == config_.scheme) return;
  const ArrivedRowsShape shape{wire,          config_, max_buffer_rows_, num_local_experts(),
                               static_scale_, device()};
  if (device().is_cuda() && recipe_.layout == Layout::kByRank && shape.is_dynamic_tensor()) {
    batch.rows_per_rank = allocate(DType::kI32, {group_.size()});
  }
  batch.quantizer =
      device().is_cpu() ? make_host_arrived_rows(shape) : make_gpu_arrived_rows(shape);
}

void ExchangePrepareFinalize::make_exchanges(bool is_plain) {
  const ExchangeConfig config = config_on(exchange_options_, recipe_, config_, is_plain);
  exchanges_[is_plain] = std::make_unique<Exchange>(group_, config, exchange_options_);
}

const ExchangePrepareFinalize::MicroBatch& ExchangePrepareFinalize::batch_of(
    int micro_batch) const {
  require(!exchanges_[0]->is_closed(), Errc::kInvalidArgument, "{}: it was closed, must be open",
          name());
  require(micro_batch >= 0 && micro_batch < config_.num_micro_batches, Errc::kInvalidArgument,
          "{}: micro_batch is {}, must be from 0 to {}", name(), micro_batch,
          config_.num_micro_batches - 1);
  return batches_[static_cast<std::size_t>(micro_batch)];
}

ExchangePrepareFinalize::MicroBatch& ExchangePrepareFinalize::busy_batch_of(int micro_batch) {
  MicroBatch& batch = batch_of(micro_batch);
  require(batch.is_busy, Errc::kInvalidArgument,
          "{}: nothing is prepared in micro_batch {}; prepare first", name(), micro_batch);
  return batch;
}

const Exchange& ExchangePrepareFinalize::exchange_of(const MicroBatch& batch) const {
  require(batch.exchange != nullptr, Errc::kInvalidArgument,
          "{}: nothing was prepared in this micro-batch; prepare first", name());
  return *batch.exchange;
}

Exchange& ExchangePrepareFinalize::exchange_for(const PrepareArguments& arguments,
                                                bool is_deferred) const {
  const bool is_plain = is_deferred && wire_scheme_of(config_).is_quantized();
  require(exchanges_[is_plain] != nullptr, Errc::kInvalidArgument,
          "{}: defer_input_quant is set in micro_batch {}, which takes an exchange of its own; set "
          "PrepareFinalizeConfig::defers_input_quant",
          name(), arguments.micro_batch);
  return *exchanges_[is_plain];
}

void ExchangePrepareFinalize::post_init_setup(const Experts& experts) {
  const bool packs =
      sends_packed_scales(recipe_, config_, experts.supports_packed_ue8m0_act_scales());
  const bool defers = experts.expects_unquantized_inputs() &&
                      wire_scheme_of(config_).is_quantized() && exchanges_[1] == nullptr;
  if (!packs && !defers) return;
  for (const MicroBatch& batch : batches_) {
    require(batch.exchange == nullptr, Errc::kInvalidArgument,
            "{}: post_init_setup comes after prepare; call it before the first one", name());
  }
  if (packs) {
    config_.scheme.scale_format = ScaleFormat::kE8M0Packed;
    if (config_.scale_layout == ScaleLayout::kColumnMajor) {
      config_.scale_layout = ScaleLayout::kColumnMajorAligned;
    }
    make_exchanges(false);
  }
  if (defers) make_exchanges(true);
}

QuantScheme ExchangePrepareFinalize::row_scheme(bool is_deferred) const {
  if (!is_deferred) return config_.scheme;
  const QuantScheme wire = wire_scheme_of(config_);
  return wire.is_quantized() ? plain_scheme_of(config_) : wire;
}

Pending<Prepared> ExchangePrepareFinalize::prepare_async(const PrepareArguments& arguments,
                                                         Stream stream, Stream receive_stream) {
  require_stream("prepare", device(), receive_stream);
  MicroBatch& batch = batch_of(arguments.micro_batch);
  const Input input = begin(batch, arguments, stream);
  batch.handle = input.exchange->dispatch_send(input.hidden, input.topk_ids, input.topk_weights,
                                               stream, input.options);
  sent(batch, input, arguments, stream);
  return split_call<Prepared>([this, &batch, receive_stream] { receive(batch, receive_stream); },
                              [&batch] { return batch.prepared; });
}

void ExchangePrepareFinalize::receive(MicroBatch& batch, Stream stream) try {
  batch.dispatched = batch.exchange->dispatch_receive(batch.handle, stream);
  arrived(batch, stream);
} catch (const Error& error) {
  // On CPUs the call is over on every rank and nothing moved.
  const bool is_harmless =
      error.code() == Errc::kCapacityExceeded || error.code() == Errc::kInvalidArgument;
  batch.is_busy = !is_harmless;
  throw;
}

Prepared ExchangePrepareFinalize::prepare(const PrepareArguments& arguments, Stream stream) {
  if (device().is_cpu()) return prepare_async(arguments, stream, stream).receiver();
  MicroBatch& batch = batch_of(arguments.micro_batch);
  const Input input = begin(batch, arguments, stream);
  batch.dispatched = input.exchange->dispatch(input.hidden, input.topk_ids, input.topk_weights,
                                              stream, input.options);
  batch.handle = batch.dispatched.handle;
  sent(batch, input, arguments, stream);
  arrived(batch, stream);
  return batch.prepared;
}

Pending<void> ExchangePrepareFinalize::finalize_async(const FinalizeArguments& arguments,
                                                      Stream stream, Stream receive_stream) {
  dbo_maybe_run_recv_hook();
  MicroBatch& batch = busy_batch_of(arguments.micro_batch);
  const TensorView output = arguments.output;
  require_stream("finalize", device(), receive_stream);
  CombineOptions options = combine_options(batch, arguments);
  options.copies_inputs = arguments.copies_inputs;
  batch.exchange->check_output(batch.handle, output, options);
  batch.exchange->combine_send(batch.handle, to_send(batch, arguments, stream), stream, options);
  return split_call<void>(
      [&batch, output, options, receive_stream] {
        batch.exchange->combine_receive(batch.handle, output, receive_stream, options);
        batch.is_busy = false;
      },
      [] {});
}

void ExchangePrepareFinalize::finalize(const FinalizeArguments& arguments, Stream stream) {
  dbo_maybe_run_recv_hook();
  MicroBatch& batch = busy_batch_of(arguments.micro_batch);
  const CombineOptions options = combine_options(batch, arguments);
  batch.exchange->check_output(batch.handle, arguments.output, options);
  batch.exchange->combine(batch.handle, to_send(batch, arguments, stream), arguments.output, stream,
                          options);
  batch.is_busy = false;
}

void ExchangePrepareFinalize::abandon(int micro_batch, const std::string& reason) {
  MicroBatch& batch = batch_of(micro_batch);
  if (group_.size() > 1) return group_.abort(reason);
  require(batch.is_busy, Errc::kInvalidArgument,
          "{}: nothing is prepared in micro_batch {} to abandon", name(), micro_batch);
  batch.exchange->release(batch.handle);
  batch.is_busy = false;
}

std::vector<RowOrigin> ExchangePrepareFinalize::row_origins(int micro_batch) const {
  const MicroBatch& batch = batch_of(micro_batch);
  return exchange_of(batch).row_origins(batch.handle);
}

WireBytes ExchangePrepareFinalize::wire_bytes(int micro_batch) const {
  const MicroBatch& batch = batch_of(micro_batch);
  return exchange_of(batch).wire_bytes(batch.handle);
}

ExchangeMemory ExchangePrepareFinalize::memory() const {
  ExchangeMemory memory{0, scratch_bytes_};
  for (const auto& exchange : exchanges_) {
    if (exchange == nullptr) continue;
    const ExchangeMemory own = exchange->memory();
    memory.window_bytes += own.window_bytes;
    memory.receive_bytes += own.receive_bytes;
  }
  return memory;
}

void ExchangePrepareFinalize::check() const {
  for (const auto& exchange : exchanges_) {
    if (exchange != nullptr) exchange->check();
  }
}

void ExchangePrepareFinalize::close(bool waits_for_peers) {
  for (const auto& exchange : exchanges_) {
    if (exchange != nullptr) exchange->close(waits_for_peers);
  }
}

}  // namespace switchyard
