// SPDX-License-Identifier: Apache-2.0
//
// The layer of `run` on GPUs. To time the stages, a rank waits for its stream after each, so
// micro-batches run one after another.

#include <algorithm>
#include <utility>

#include "switchyard/modular_kernel.h"

#include "core/clock.h"
#include "core/even_parts.h"
#include "core/fail.h"
#include "core/settings.h"
#include "device/cuda_module.h"
#include "quant/scheme.h"
#include "run_layer.h"

namespace switchyard::cli {
namespace {

std::size_t stage_of(LayerStage stage) {
  switch (stage) {
    case LayerStage::kPrepare: return 1;
    case LayerStage::kExperts: return 3;
    case LayerStage::kCombine: return 4;
    case LayerStage::kShared: return 5;
  }
  fail(Errc::kInternal, "run: no stage {}", static_cast<int>(stage));
}

class CudaLayer final : public LayerTarget {
 public:
  explicit CudaLayer(const LayerSetup& setup);

  std::array<std::int64_t, kNumStages> apply(const PrepareArguments& arguments,
                                             const TensorView& output, RankResult* last) override;

 private:
  std::unique_ptr<ModularKernel> make_kernel();
  TensorView upload(const TensorView& host, const Tensor& to);
  Tensor download(const TensorView& device);
  Tensor download_rows(const TensorView& device, const std::vector<RowOrigin>& origins);
  void inspect(const PrepareArguments& arguments, const Prepared& prepared,
               const TensorView& expert_output, RankResult& result);
  std::vector<RowOrigin> row_origins(const PrepareArguments& arguments) const;
  void describe(RankResult& result) const;

  LayerSetup setup_;
  std::unique_ptr<DeviceQueue> queue_;
  // Buffers for this rank's tokens.
  Tensor hidden_;
  Tensor topk_ids_;
  Tensor topk_weights_;
  Tensor output_;
  Tensor shared_gate_;
  std::unique_ptr<ModularKernel> kernel_;  ///< last: destroyed before the memory it uses
};

CudaLayer::CudaLayer(const LayerSetup& setup)
    : setup_(setup), queue_(cuda_module().make_queue(default_gpu(setup.group).index)) {
  const PrepareFinalizeConfig& config = setup.run_config.prepare;
  const Device device = queue_->device();
  const std::int64_t num_tokens = config.max_tokens_per_rank;
  hidden_ = Tensor(DType::kBF16, {num_tokens, config.hidden}, device);
  topk_ids_ = Tensor(DType::kI64, {num_tokens, config.num_topk}, device);
  topk_weights_ = Tensor(DType::kF32, {num_tokens, config.num_topk}, device);
  output_ = Tensor(DType::kBF16, {num_tokens, config.hidden}, device);
  const TensorView& gate = setup.weights.shared_gate;
  if (gate.has_value()) shared_gate_ = copy_to(gate, device);
  kernel_ = make_kernel();
}

std::unique_ptr<ModularKernel> CudaLayer::make_kernel() {
  const auto& [kind, config, intermediate_scale] = setup_.run_config;
  const std::string& name = setup_.options.experts;
  ExpertOptions expert_options{setup_.run_config.intermediate(), setup_.config.activation};
  if (intermediate_scale) {
    expert_options.intermediate_scale = TensorView::of(&*intermediate_scale, {1});
  }
  SharedExpert shared;
  if (setup_.weights.shared.has_value()) {
    shared.experts = make_experts(name, setup_.weights.shared.view(), {}, queue_->device());
    shared.gate = shared_gate_;
  }
  auto experts =
      make_experts(name, setup_.weights.experts.view(), expert_options, queue_->device());
  return std::make_unique<ModularKernel>(
      make_prepare_finalize(kind, setup_.group, config,
                            {.device = queue_->device(),
                             .host_capacity = setup_.options.host_capacity,
                             .exact_messages = setup_.options.exact_messages}),
      std::move(experts), std::move(shared));
}

TensorView CudaLayer::upload(const TensorView& host, const Tensor& to) {
  if (host.num_bytes() > 0) queue_->copy(to.data(), host.data(), host.num_bytes());
  return TensorView(to.data(), host.dtype(), {host.shape(0), host.shape(1)}, to.device());
}

// Copies a tensor of one or more dimensions to a host matrix; experts' rows are stacked.
Tensor CudaLayer::download(const TensorView& device) {
  const int last = device.num_dims() - 1;
  const std::int64_t width = last > 0 ? device.shape(last) : 1;
  Tensor host(device.dtype(), {width == 0 ? 0 : device.num_elements() / width, width});
  if (device.num_bytes() > 0) queue_->copy(host.data(), device.data(), device.num_bytes());
  return host;
}

// As download, but copies only the rows that came: a buffer may be many times larger.
Tensor CudaLayer::download_rows(const TensorView& device, const std::vector<RowOrigin>& origins) {
  const std::int64_t width = device.shape(device.num_dims() - 1);
  const std::int64_t num_rows = device.num_elements() / width;
  Tensor host(device.dtype(), {num_rows, width});
  const std::size_t row_bytes = device.num_bytes() / static_cast<std::size_t>(num_rows);
  std::vector<std::int64_t> rows;
  for (const RowOrigin& origin : origins) rows.push_back(origin.row);
  std::ranges::sort(rows);
  for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    for (end = begin + 1; end < rows.size() && rows[end] <= rows[end - 1] + 1; ++end) {
    }
    const std::size_t at = static_cast<std::size_t>(rows[begin]) * row_bytes;
    queue_->copy(host.as<std::byte>() + at, device.as<std::byte>() + at,
                 static_cast<std::size_t>(rows[end - 1] - rows[begin] + 1) * row_bytes);
  }
  return host;
}

std::array<std::int64_t, kNumStages> CudaLayer::apply(const PrepareArguments& arguments,
                                                      const TensorView& output, RankResult* last) {
  const TensorView hidden = upload(arguments.hidden, hidden_);
  const TensorView ids = upload(arguments.topk_ids, topk_ids_);
  const TensorView weights = upload(arguments.topk_weights, topk_weights_);
  const TensorView result(output_.data(), output.dtype(), {output.shape(0), output.shape(1)},
                          output_.device());
  PrepareArguments on_host;  // of the micro-batch that runs
  if (last != nullptr) {
    describe(*last);
    kernel_->set_inspector([&, last](const Prepared& prepared, const TensorView& rows) {
      inspect(on_host, prepared, rows, *last);
    });
  }
  std::array<std::int64_t, kNumStages> sample{};
  std::int64_t before = now_ns();
  kernel_->set_stage_observer([&](LayerStage stage) {
    queue_->wait();
    // On a shared GPU, libraries may load kernels only while no peer's kernel waits for this rank.
    if (kernel_->prepare_finalize().is_shared_gpu()) setup_.group.barrier();
    const std::int64_t now = now_ns();
    sample[stage_of(stage)] += now - std::exchange(before, now);
  });
  const std::int64_t count = setup_.options.micro_batches;
  const std::int64_t num_tokens = hidden.shape(0);
  for (std::int64_t m = 0; m < count; ++m) {
    const std::int64_t begin = part_begin(num_tokens, count, m);
    const std::int64_t end = part_begin(num_tokens, count, m + 1);
    on_host = {slice_rows(arguments.hidden, begin, end), slice_rows(arguments.topk_ids, begin, end),
               slice_rows(arguments.topk_weights, begin, end)};
    on_host.micro_batch = static_cast<int>(m);
    on_host.max_tokens = (setup_.run_config.prepare.max_tokens_per_rank + count - 1) / count;
    PrepareArguments part = on_host;
    part.apply_router_weight_on_input = arguments.apply_router_weight_on_input;
    part.hidden = slice_rows(hidden, begin, end);
    part.topk_ids = slice_rows(ids, begin, end);
    part.topk_weights = slice_rows(weights, begin, end);
    kernel_->apply(part, slice_rows(result, begin, end), queue_->stream());
  }
  kernel_->check();
  kernel_->set_inspector({});
  if (output.num_bytes() > 0) queue_->copy(output.data(), output_.data(), output.num_bytes());
  return sample;
}

// Runs once per micro-batch, before the rows return to their source ranks.
void CudaLayer::inspect(const PrepareArguments& arguments, const Prepared& prepared,
                        const TensorView& expert_output, RankResult& result) {
  queue_->wait();
  kernel_->check();
  const Tensor counts = download(prepared.experts.num_rows);
  const Tensor total = download(prepared.total_rows);
  const auto num_counts = static_cast<std::size_t>(counts.shape(0));
  add_rows(setup_, *total.as<std::int32_t>(), {counts.as<std::int32_t>(), num_counts}, result);
  const ExpertRows& from = prepared.experts;
  std::vector<RowOrigin> origins = row_origins(arguments);
  const auto rows_of = [&](const TensorView& device, bool is_wanted = true) {
    return is_wanted && device.num_bytes() > 0 ? download_rows(device, origins) : Tensor();
  };
  const bool dumps = !setup_.options.dump.empty();
  const auto whole = [&](const TensorView& device) {
    return device.has_value() ? download(device) : Tensor();
  };
  const Tensor rows = rows_of(from.rows);
  const Tensor scales = has_row_scales(from.scheme) ? rows_of(from.scales) : whole(from.scales);
  const Tensor tensor_scale = whole(from.tensor_scale);
  const Tensor ids = rows_of(prepared.topk_ids, dumps);
  const Tensor returned = rows_of(expert_output, dumps);
  ExpertRows experts;
  experts.rows = rows;
  experts.scales = scales;
  experts.scheme = from.scheme;
  experts.num_rows = TensorView::of(counts.as<std::int32_t>(), {counts.shape(0)});
  experts.tensor_scale = tensor_scale;
  ServedRows served{experts, ids, returned, std::move(origins)};
  if (tamper_with_rows) tamper_with_rows(served);
  for (const ReceivedRow& row :
       describe_rows(served, setup_.config.hidden, arguments.micro_batch)) {
    result.received.push_back(row);
  }
  if (dumps) dump_rows(setup_, arguments, served);
}

// GPUs keep no list of origins. Rows have the same places as on CPUs, so a CPU exchange of the same
// ids between the same ranks, with narrow rows, yields them.
std::vector<RowOrigin> CudaLayer::row_origins(const PrepareArguments& arguments) const {
  constexpr std::int64_t kColumns = 16;
  PrepareFinalizeConfig config = setup_.run_config.prepare;
  config.hidden = kColumns;
  config.scheme = config.combine_scheme = schemes::kNone;
  config.wire_scheme.reset();
  config.static_scale.reset();
  config.scale_layout = ScaleLayout::kRowMajor;
  config.defers_input_quant = false;
  const auto twin = make_prepare_finalize(setup_.run_config.kind, setup_.group, config);
  const std::int64_t num_tokens = arguments.hidden.shape(0);
  const Tensor narrow(DType::kBF16, {num_tokens, kColumns});
  PrepareArguments same{narrow, arguments.topk_ids, arguments.topk_weights};
  same.max_tokens = arguments.max_tokens;
  const Prepared prepared = twin->prepare(same);
  std::vector<RowOrigin> origins = twin->row_origins();
  const bool is_grouped = !prepared.topk_ids.has_value() || prepared.topk_ids.shape(1) == 1;
  const std::int64_t num_rows = prepared.experts.rows.num_elements() / kColumns;
  const Tensor rows(DType::kBF16, {num_rows, kColumns});
  twin->finalize(
      {narrow, rows, is_grouped ? WeightAndReduce::delegate() : WeightAndReduce::no_op()});
  return origins;
}

void CudaLayer::describe(RankResult& result) const {
  const PrepareFinalize& prepare = kernel_->prepare_finalize();
  const ExchangeMemory memory = prepare.memory();
  result.window_bytes = static_cast<std::int64_t>(memory.window_bytes);
  result.workspace_bytes =
      static_cast<std::int64_t>(memory.receive_bytes + kernel_->workspace_bytes());
  const DeviceFacts facts = cuda_module().describe_devices(setting("SWITCHYARD_HEAP").text);
  const auto rank = static_cast<std::size_t>(setup_.group.rank());
  if (!facts.gpus.empty()) result.gpu = facts.gpus[rank % facts.gpus.size()].name;
  result.heap = prepare.heap();
  result.is_shared_gpu = prepare.is_shared_gpu();
}

}  // namespace

std::unique_ptr<LayerTarget> make_cuda_layer(const LayerSetup& setup) {
  return std::make_unique<CudaLayer>(setup);
}

}  // namespace switchyard::cli
