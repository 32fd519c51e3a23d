// SPDX-License-Identifier: Apache-2.0

#include "switchyard/device_modular_kernel.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "core/bytes.h"
#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "device/device_tensors.h"
#include "moe/kernel/layer_checks.h"
#include "quant/scheme.h"

namespace switchyard {

struct DeviceModularKernel::Memory {
  DeviceTensors tensors;
  // Of the shared expert.
  TensorView first_row;   ///< [1] i64: 0
  TensorView num_tokens;  ///< [T + 1] i32: entry t is t, a count that needs no copy
};

/// Memory of one micro-batch.
struct DeviceModularKernel::Scratch {
  TensorView expert_output;  ///< [N or M, H] bf16
  TensorView expert_workspace;
  // Where rows arrive one a token.
  std::byte* rows = nullptr;    ///< [M, H] as stored
  std::byte* scales = nullptr;  ///< [M, S]
  TensorView row_experts;       ///< [M] i32
  TensorView inv_perm;          ///< [N, K] i32
  TensorView first_row;         ///< [L] i64
  TensorView num_rows;          ///< [L] i32
  TensorView reduced;           ///< [N, H] bf16
  TensorView permute_workspace;
  // Of the shared expert.
  TensorView shared_rows;     ///< [T, H] bf16
  TensorView shared_weights;  ///< [T] f32
  TensorView shared_workspace;
};

/// What goes to finalize.
struct DeviceModularKernel::Returned {
  TensorView rows;
  WeightAndReduce weight_and_reduce;
};

namespace {

// The larger of what experts want for rows as they come, and for rows that they quantize.
std::size_t workspace_for(const DeviceExperts& experts, const DevicePrepareFinalize& prepare,
                          std::int64_t num_rows) {
  std::size_t most = 0;
  const std::int64_t num_local = prepare.num_local_experts();
  const bool is_batched =
      prepare.activation_format() == ActivationFormat::kBatched && num_local > 0;
  for (const bool is_deferred : {false, true}) {
    const DType dtype = stored_dtype(prepare.row_scheme(is_deferred));
    const TensorView rows =
        is_batched ? TensorView(nullptr, dtype, {num_local, num_rows / num_local, prepare.hidden()})
                   : TensorView(nullptr, dtype, {num_rows, prepare.hidden()});
    most = std::max(most, experts.workspace_bytes(rows));
  }
  return most;
}

TensorView allocate_bytes(DeviceTensors& tensors, std::size_t num_bytes) {
  return tensors.allocate(DType::kU8, {static_cast<std::int64_t>(num_bytes)});
}

std::span<std::byte> span_of(const TensorView& bytes) {
  return {bytes.as<std::byte>(), bytes.num_bytes()};
}

ByteRows byte_rows_of(const TensorView& rows) {
  const std::int64_t bytes = rows.shape(1) * bits_of(rows.dtype()) / 8;
  return {rows.as<std::byte>(), rows.shape(0), static_cast<std::size_t>(bytes), bytes};
}

}  // namespace

DeviceModularKernel::DeviceModularKernel(std::unique_ptr<DevicePrepareFinalize> prepare_finalize,
                                         std::unique_ptr<DeviceExperts> experts,
                                         DeviceSharedExpert shared)
    : prepare_finalize_(std::move(prepare_finalize)),
      experts_(std::move(experts)),
      shared_(std::move(shared)),
      memory_(std::make_unique<Memory>()) {
  check_parts(prepare_finalize_ != nullptr && experts_ != nullptr, shared_.experts != nullptr,
              shared_.order);
  check_shared_gate(shared_.gate, prepare_finalize_->hidden());
  prepare_finalize_->post_init_setup(*experts_);
  allocate_memory();
  // Peers may start to wait in kernels only when nobody takes memory any more.
  prepare_finalize_->group().barrier();
}

// The exchange first: it waits for the GPU, and for peers that may still read from here.
DeviceModularKernel::~DeviceModularKernel() { prepare_finalize_.reset(); }

void DeviceModularKernel::allocate_memory() {
  const DevicePrepareFinalize& prepare = *prepare_finalize_;
  const bool is_permuted = has_row_a_token(prepare.kind());
  const std::int64_t arrived = prepare.max_buffer_rows();
  const std::int64_t grouped =
      is_permuted ? compute_aligned_m(arrived, prepare.num_topk(), prepare.num_local_experts(), 1)
                  : arrived;
  DeviceTensors& tensors = memory_->tensors;
  scratch_.resize(static_cast<std::size_t>(prepare.num_micro_batches()));
  for (Scratch& scratch : scratch_) {
    scratch.expert_output = tensors.allocate(DType::kBF16, {grouped, prepare.hidden()});
    scratch.expert_workspace = allocate_bytes(tensors, workspace_for(*experts_, prepare, grouped));
    if (is_permuted) allocate_permuted(scratch, grouped);
  }
  if (shared_.experts != nullptr) allocate_shared();
  tensors.close();
}

void DeviceModularKernel::allocate_permuted(Scratch& scratch, std::int64_t grouped) {
  const DevicePrepareFinalize& prepare = *prepare_finalize_;
  DeviceTensors& tensors = memory_->tensors;
  const std::int64_t arrived = prepare.max_buffer_rows();
  const std::int64_t num_local = prepare.num_local_experts();
  std::size_t row = 0;
  std::size_t row_scales = 0;
  for (const bool is_deferred : {false, true}) {
    require(prepare.row_scale_layout(is_deferred) != ScaleLayout::kSwizzled, Errc::kNotSupported,
            "modular_kernel: scale_layout is swizzled in {}, whose rows are permuted here; on GPUs "
            "must be row_major or column_major",
            prepare.name());
    const QuantScheme scheme = prepare.row_scheme(is_deferred);
    row = std::max(row, row_bytes(scheme, prepare.hidden()));
    row_scales = std::max(row_scales, scale_row_bytes(scheme, prepare.hidden()));
  }
  const auto rows = static_cast<std::size_t>(grouped);
  scratch.rows = tensors.allocate_bytes(checked_mul(rows, row));
  scratch.scales = tensors.allocate_bytes(checked_mul(rows, row_scales));
  scratch.row_experts = tensors.allocate(DType::kI32, {grouped});
  scratch.inv_perm = tensors.allocate(DType::kI32, {arrived, prepare.num_topk()});
  scratch.first_row = tensors.allocate(DType::kI64, {num_local});
  scratch.num_rows = tensors.allocate(DType::kI32, {num_local});
  scratch.reduced = tensors.allocate(DType::kBF16, {arrived, prepare.hidden()});
  scratch.permute_workspace =
      allocate_bytes(tensors, ep_scatter_workspace_bytes(arrived, prepare.num_topk(), num_local));
}

void DeviceModularKernel::allocate_shared() {
  const std::int64_t num_tokens = *prepare_finalize_->max_num_tokens_per_rank();
  const std::int64_t hidden = prepare_finalize_->hidden();
  DeviceTensors& tensors = memory_->tensors;
  memory_->first_row = tensors.allocate_copy<std::int64_t>(DType::kI64, {1}, {0});
  std::vector<std::int32_t> counts(static_cast<std::size_t>(num_tokens) + 1);
  std::iota(counts.begin(), counts.end(), 0);
  memory_->num_tokens = tensors.allocate_copy(DType::kI32, {num_tokens + 1}, counts);
  const TensorView rows(nullptr, DType::kBF16, {num_tokens, hidden});
  const std::size_t workspace = shared_.experts->workspace_bytes(rows);
  for (Scratch& scratch : scratch_) {
    scratch.shared_rows = tensors.allocate(DType::kBF16, {num_tokens, hidden});
    scratch.shared_weights = tensors.allocate(DType::kF32, {num_tokens});
    scratch.shared_workspace = allocate_bytes(tensors, workspace);
  }
}

std::size_t DeviceModularKernel::workspace_bytes() const { return memory_->tensors.size_bytes(); }

bool DeviceModularKernel::is_capturable() const {
  const bool is_batched = prepare_finalize_->activation_format() == ActivationFormat::kBatched;
  return experts_->is_capturable(is_batched) &&
         (shared_.experts == nullptr || shared_.experts->is_capturable(false));
}

DeviceModularKernel::Scratch& DeviceModularKernel::scratch_of(int micro_batch) {
  require(micro_batch >= 0 && micro_batch < prepare_finalize_->num_micro_batches(),
          Errc::kInvalidArgument, "modular_kernel: micro_batch is {}, must be from 0 to {}",
          micro_batch, prepare_finalize_->num_micro_batches() - 1);
  return scratch_[static_cast<std::size_t>(micro_batch)];
}

void DeviceModularKernel::observe(LayerStage stage) const {
  if (observer_) observer_(stage);
}

void DeviceModularKernel::apply(const DevicePrepareArguments& given, const TensorView& output,
                                Stream stream) {
  check_call(output, given.hidden.shape(0), prepare_finalize_->hidden(), given.weighs_in_place,
             shared_.experts != nullptr);
  DevicePrepareArguments arguments = given;
  arguments.defer_input_quant |= experts_->expects_unquantized_inputs();
  const Scratch& scratch = scratch_of(arguments.micro_batch);
  const SharedExpertsOrder order = shared_experts_order();
  if (order == SharedExpertsOrder::kNoOverlap) run_shared(arguments.hidden, scratch, stream);
  const DevicePrepared prepared = prepare_finalize_->prepare(arguments, stream);
  observe(LayerStage::kPrepare);
  const Returned returned = run_experts(arguments, prepared, stream);
  observe(LayerStage::kExperts);
  DeviceFinalizeArguments results{output, returned.rows, returned.weight_and_reduce,
                                  arguments.micro_batch};
  if (order != SharedExpertsOrder::kNone) {
    results.shared = rows_of_shared(arguments.hidden.shape(0), scratch);
  }
  if (order != SharedExpertsOrder::kMkInternalOverlapped) {
    finalize(results, stream);
  } else {
    const Pending<void> pending = return_results(results, stream);
    observe(LayerStage::kCombine);
    try {
      run_shared(arguments.hidden, scratch, stream);
    } catch (...) {
      pending.receiver();  // every rank's results are under way: the call ends as on the peers
      throw;
    }
    pending.receiver();
  }
  observe(LayerStage::kCombine);
}

// Peers wait for these rows: when the experts fail they must learn of it.
DeviceModularKernel::Returned DeviceModularKernel::run_experts(
    const DevicePrepareArguments& arguments, const DevicePrepared& prepared, Stream stream) try {
  const Scratch& scratch = scratch_of(arguments.micro_batch);
  Returned returned;
  if (has_row_a_token(prepare_finalize_->kind())) {
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
}

void DeviceModularKernel::finalize(const DeviceFinalizeArguments& arguments, Stream stream) try {
  prepare_finalize_->finalize(arguments, stream);
} catch (const std::exception& error) {
  prepare_finalize_->abandon(arguments.micro_batch,
                             fmt::format("its finalize ended with: {}", error.what()));
  throw;
}

Pending<void> DeviceModularKernel::return_results(const DeviceFinalizeArguments& arguments,
                                                  Stream stream) try {
  return prepare_finalize_->finalize_async(arguments, stream, stream);
} catch (const std::exception& error) {
  prepare_finalize_->abandon(arguments.micro_batch,
                             fmt::format("its finalize ended with: {}", error.what()));
  throw;
}

TensorView DeviceModularKernel::run_grouped(const DeviceExpertRows& rows, const Scratch& scratch,
                                            Stream stream) {
  const TensorView& from = rows.rows;
  void* const data = scratch.expert_output.data();
  const TensorView output =
      from.num_dims() == 3
          ? TensorView(data, DType::kBF16, {from.shape(0), from.shape(1), from.shape(2)})
          : TensorView(data, DType::kBF16, {from.shape(0), from.shape(1)});
  if (from.num_elements() > 0 && rows.num_rows.num_elements() > 0) {
    experts_->apply(rows, output, scratch.expert_workspace, stream);
  }
  return output;
}

// A row a token: each row to this rank's experts that want it, and their weighted sum back.
TensorView DeviceModularKernel::run_permuted(const DevicePrepared& prepared, const Scratch& scratch,
                                             Stream stream) {
  const DeviceExpertRows& arrived = prepared.experts;
  const std::int64_t num_rows = arrived.rows.shape(0);
  const std::int64_t num_topk = prepare_finalize_->num_topk();
  const std::int64_t grouped =
      compute_aligned_m(num_rows, num_topk, prepare_finalize_->num_local_experts(), 1);
  const bool has_row_scales = arrived.scales.num_dims() == 2;
  PermuteOptions options;
  options.expert_map = prepare_finalize_->expert_map();
  options.alignment = 1;
  ScatterOutputs outputs;
  outputs.x = TensorView(scratch.rows, arrived.rows.dtype(), {grouped, arrived.rows.shape(1)});
  if (has_row_scales) {
    outputs.scales =
        TensorView(scratch.scales, arrived.scales.dtype(), {grouped, arrived.scales.shape(1)});
  }
  outputs.m_indices = TensorView(scratch.row_experts.data(), DType::kI32, {grouped});
  outputs.inv_perm = TensorView(scratch.inv_perm.data(), DType::kI32, {num_rows, num_topk});
  outputs.first_row = scratch.first_row;
  outputs.expert_num_tokens = scratch.num_rows;
  ep_scatter(arrived.rows, has_row_scales ? arrived.scales : TensorView(), prepared.topk_ids,
             options, outputs, span_of(scratch.permute_workspace), stream);
  const DeviceExpertRows rows{outputs.x,        has_row_scales ? outputs.scales : arrived.scales,
                              arrived.scheme,   scratch.first_row,
                              scratch.num_rows, arrived.tensor_scale};
  const TensorView output = run_grouped(rows, scratch, stream);
  const TensorView reduced(scratch.reduced.data(), DType::kBF16,
                           {num_rows, prepare_finalize_->hidden()});
  unpermute_and_reduce(output, outputs.inv_perm, prepared.topk_weights, reduced, stream);
  return reduced;
}

TensorView DeviceModularKernel::rows_of_shared(std::int64_t num_tokens,
                                               const Scratch& scratch) const {
  return TensorView(scratch.shared_rows.data(), DType::kBF16,
                    {num_tokens, prepare_finalize_->hidden()});
}

// The expert's rows; where there is a gate times sigmoid(x . gate), in f32, rounded again.
void DeviceModularKernel::run_shared(const TensorView& hidden, const Scratch& scratch,
                                     Stream stream) {
  const std::int64_t num_tokens = hidden.shape(0);
  check_matrix(hidden, {"modular_kernel",
                        "hidden",
                        {DType::kBF16, DType::kF16, DType::kF32},
                        num_tokens,
                        prepare_finalize_->hidden()});
  const std::int64_t most = memory_->num_tokens.shape(0) - 1;
  require(num_tokens <= most, Errc::kInvalidArgument,
          "modular_kernel: hidden has {} rows, but max_tokens_per_rank is {}", num_tokens, most);
  const TensorView rows = rows_of_shared(num_tokens, scratch);
  const TensorView count(memory_->num_tokens.as<std::int32_t>() + num_tokens, DType::kI32, {1});
  if (num_tokens > 0) {
    shared_.experts->apply({hidden, {}, schemes::kNone, memory_->first_row, count, {}}, rows,
                           scratch.shared_workspace, stream);
  }
  if (shared_.gate.has_value()) {
    cuda_module().gate_weights(
        {hidden.data(), hidden.shape(1), hidden.dtype(), shared_.gate.data(), shared_.gate.dtype(),
         num_tokens, hidden.shape(1), scratch.shared_weights.as<float>()},
        stream);
    cuda::ReduceArgs args;
    args.sum_source = cuda::SumSource::kContiguous;
    args.ids.num_tokens = num_tokens;
    args.ids.num_topk = 1;
    args.weights = scratch.shared_weights.as<float>();
    args.weight_token_stride = 1;
    args.rows = byte_rows_of(rows);
    args.out = args.rows;  // each element is read before it is written
    args.hidden = hidden.shape(1);
    cuda_module().reduce_rows(args, stream);
  }
  observe(LayerStage::kShared);
}

}  // namespace switchyard
