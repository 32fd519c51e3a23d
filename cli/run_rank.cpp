// SPDX-License-Identifier: Apache-2.0

#include "run_rank.h"

#include <algorithm>
#include <filesystem>

#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/router.h"

#include "core/clock.h"
#include "core/fail.h"
#include "io/checkpoint.h"
#include "io/moe_layer.h"
#include "io/safetensors.h"
#include "plan/expert_ownership.h"
#include "progress.h"

namespace switchyard::cli {
namespace {

constexpr std::size_t kMaxSamples = 1000;  // of a long run, the newest count

// Medians over repeats, in bounded memory.
class StageSamples {
 public:
  void add(const std::array<std::int64_t, kNumStages>& sample) {
    if (samples_.size() < kMaxSamples) {
      samples_.push_back(sample);
    } else {
      samples_[next_++ % kMaxSamples] = sample;
    }
  }

  std::array<std::int64_t, kNumStages> medians() const {
    std::array<std::int64_t, kNumStages> result{};
    // The first call maps pages and loads code: it counts only when it is the only one.
    const std::size_t skip = samples_.size() > 1 ? 1 : 0;
    for (std::size_t stage = 0; stage < kNumStages; ++stage) {
      std::vector<std::int64_t> values;
      for (std::size_t i = skip; i < samples_.size(); ++i) values.push_back(samples_[i][stage]);
      std::sort(values.begin(), values.end());
      result[stage] = values[values.size() / 2];
    }
    return result;
  }

 private:
  std::vector<std::array<std::int64_t, kNumStages>> samples_;
  std::size_t next_ = 0;
};

// Everything one rank needs to run the layer, in the order in which it is made.
class LayerRun {
 public:
  LayerRun(const Group& group, const RunOptions& options)
      : group_(group),
        options_(options),
        config_(read_model_config(options.model)),
        input_(load_run_input(options, config_)),
        first_token_(split_tokens(options.split, input_.num_tokens(), group.size())) {
    const Checkpoint checkpoint(options.model);
    const int owners = options.prepare == "local" ? 1 : group.size();
    const int rank = options.prepare == "local" ? 0 : group.rank();
    ownership_ = {config_.num_experts(), owners};
    first_expert_ = ownership_.first(rank);
    weights_ =
        load_moe_layer(checkpoint, config_, options.layer, first_expert_, ownership_.count(rank));
    make_kernel(rank);
    const auto r = static_cast<std::size_t>(group.rank());
    begin_ = first_token_[r];
    end_ = first_token_[r + 1];
    output_ = Tensor(DType::kBF16, {end_ - begin_, std::int64_t{config_.hidden}});
  }

  RankResult run();

 private:
  void make_kernel(int rank);
  std::int64_t route();
  void dump(const Prepared& prepared, const TensorView& expert_output);

  Group group_;
  RunOptions options_;
  ModelConfig config_;
  RunInput input_;
  std::vector<std::int64_t> first_token_;
  ExpertOwnership ownership_;
  int first_expert_ = 0;
  MoeLayerWeights weights_;
  RunConfig run_config_;
  ExchangeMemory memory_;
  std::unique_ptr<ModularKernel> kernel_;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  Tensor output_;
  Tensor routed_ids_;
  Tensor routed_weights_;
  PrepareArguments arguments_;
  RankResult result_;
};

void LayerRun::make_kernel(int rank) {
  std::int64_t max_tokens = 0;
  for (std::size_t r = 1; r < first_token_.size(); ++r) {
    max_tokens = std::max(max_tokens, first_token_[r] - first_token_[r - 1]);
  }
  run_config_ = make_run_config(options_, config_, input_, max_tokens);
  run_config_.prepare.num_micro_batches = options_.micro_batches;
  const auto& [kind, config, intermediate_scale] = run_config_;
  memory_ = prepare_finalize_memory(kind, config, ownership_.num_ranks, rank);

  ExpertOptions expert_options{config.scheme};
  if (intermediate_scale) {
    expert_options.intermediate_scale = TensorView::of(&*intermediate_scale, {1});
  }
  SharedExpert shared;
  if (weights_.shared.has_value()) {
    // Shared experts are not dispatched, so nothing of theirs is quantized.
    shared.experts = make_experts(options_.experts, weights_.shared.view(), {});
    shared.gate = weights_.shared_gate.view();
  }
  kernel_ = std::make_unique<ModularKernel>(
      make_prepare_finalize(kind, group_, config),
      make_experts(options_.experts, weights_.experts.view(), expert_options), std::move(shared));
}

// Ids and weights of this rank's tokens: from the file, or from the router. Returns nanoseconds.
std::int64_t LayerRun::route() {
  const std::int64_t start = now_ns();
  arguments_.hidden = slice_rows(input_.hidden, begin_, end_);
  arguments_.topk_ids = slice_rows(input_.topk_ids, begin_, end_);
  arguments_.topk_weights = slice_rows(input_.topk_weights, begin_, end_);
  if (!input_.topk_ids.view().has_value()) {
    const std::int64_t num_tokens = end_ - begin_;
    const Tensor logits(DType::kF32, {num_tokens, std::int64_t{config_.num_experts()}});
    router_logits(arguments_.hidden, weights_.router_gate, logits);
    routed_ids_ = Tensor(DType::kI32, {num_tokens, std::int64_t{config_.num_topk()}});
    routed_weights_ = Tensor(DType::kF32, {num_tokens, std::int64_t{config_.num_topk()}});
    select_experts(config_.router, logits, weights_.router_bias, routed_ids_, routed_weights_);
    arguments_.topk_ids = routed_ids_;
    arguments_.topk_weights = routed_weights_;
  }
  return now_ns() - start;
}

RankResult LayerRun::run() {
  StageSamples samples;
  Progress progress("run", options_.repeat, group_.rank() == 0 && !options_.json);
  for (std::int64_t i = 0; i < options_.repeat; ++i) {
    const bool is_last = i + 1 == options_.repeat;
    const std::int64_t route_ns = route();
    if (is_last) {
      kernel_->set_inspector([this](const Prepared& prepared, const TensorView& expert_output) {
        // Once for each micro-batch.
        result_.num_rows += prepared.num_rows;
        result_.expert_rows.resize(static_cast<std::size_t>(config_.num_experts()));
        for (std::size_t e = 0; e < prepared.experts.num_rows.size(); ++e) {
          result_.expert_rows[static_cast<std::size_t>(first_expert_) + e] +=
              prepared.experts.num_rows[e];
        }
        const WireBytes bytes = kernel_->prepare_finalize().wire_bytes(dbo_current_micro_batch());
        result_.dispatch_bytes += bytes.dispatch;
        result_.combine_bytes += bytes.combine;
        if (!options_.dump.empty()) dump(prepared, expert_output);
      });
    }
    apply_overlapped(*kernel_, arguments_, output_, options_.micro_batches);
    std::array<std::int64_t, kNumStages> sample{route_ns};
    for (int m = 0; m < options_.micro_batches; ++m) {
      const StageTimes& times = kernel_->times(m);
      const std::array<std::int64_t, kNumStages> part{0,
                                                      times.dispatch_ns,
                                                      times.place_ns,
                                                      times.experts_ns,
                                                      times.combine_ns,
                                                      times.shared_ns};
      for (std::size_t stage = 0; stage < kNumStages; ++stage) sample[stage] += part[stage];
    }
    samples.add(sample);
    progress.update(i + 1);
  }
  result_.stage_ns = samples.medians();
  result_.config = config_;
  result_.layer = weights_.layer;
  result_.run_config = run_config_;
  result_.input = std::move(input_);
  result_.first_token = first_token_;
  result_.output = std::move(output_);
  result_.window_bytes = static_cast<std::int64_t>(memory_.window_bytes);
  result_.workspace_bytes =
      static_cast<std::int64_t>(memory_.receive_bytes + kernel_->workspace_bytes());
  return std::move(result_);
}

// Valid rows only: by (expert, source rank, token, k), or by (source rank, token) in layouts with a
// row a token, whose expert is -1.
void LayerRun::dump(const Prepared& prepared, const TensorView& expert_output) {
  const std::vector<RowOrigin> origins = kernel_->prepare_finalize().row_origins();
  const auto num_rows = static_cast<std::int64_t>(origins.size());
  const TensorView& rows = prepared.experts.rows;
  const QuantScheme& scheme = prepared.experts.scheme;
  const std::int64_t num_row_scales = num_scales(scheme, config_.hidden);
  const bool has_row_scales = scheme.group != ScaleGroup::kTensor && num_row_scales > 0;
  // Row-major, whether or not experts have blocks of their own.
  const TensorView scales =
      has_row_scales ? TensorView(prepared.experts.scales.data(), prepared.experts.scales.dtype(),
                                  {rows.shape(0), num_row_scales})
                     : prepared.experts.scales;
  const Tensor recv_x(rows.dtype(), {num_rows, rows.shape(1)});
  const Tensor row_scales(has_row_scales ? scales.dtype() : DType::kF32,
                          {num_rows, has_row_scales ? scales.shape(1) : 1});
  const Tensor returned(DType::kBF16, {num_rows, rows.shape(1)});
  const Tensor sources(DType::kI32, {num_rows, 4});
  const auto copy_row = [](const TensorView& from, std::int64_t row, const Tensor& to,
                           std::int64_t to_row) {
    const std::int64_t bytes = from.shape(1) * bits_of(from.dtype()) / 8;
    std::copy_n(from.as<std::byte>() + row * bytes, bytes, to.as<std::byte>() + to_row * bytes);
  };
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const RowOrigin& origin = origins[static_cast<std::size_t>(i)];
    copy_row(rows, origin.row, recv_x, i);
    copy_row(expert_output, origin.row, returned, i);
    if (has_row_scales) copy_row(scales, origin.row, row_scales, i);
    if (scales.has_value() && !has_row_scales) row_scales.as<float>()[i] = *scales.as<float>();
    std::int32_t* source = sources.as<std::int32_t>() + i * 4;
    source[0] = origin.expert < 0 ? -1 : first_expert_ + origin.expert;
    source[1] = origin.rank;
    source[2] = origin.token;
    source[3] = origin.k;
  }
  const std::span<const std::int32_t> counts = prepared.experts.num_rows;
  const TensorView expert_num_tokens(counts.data(), DType::kI32,
                                     {static_cast<std::int64_t>(counts.size())});
  std::vector<NamedTensor> tensors{{"recv_x", recv_x},
                                   {"expert_num_tokens", expert_num_tokens},
                                   {"row_source", sources},
                                   {"topk_ids", arguments_.topk_ids},
                                   {"topk_weights", arguments_.topk_weights},
                                   {"output", returned}};
  if (scales.has_value()) tensors.push_back({"scales", row_scales});
  const TensorView& tensor_scale = prepared.experts.tensor_scale;
  if (tensor_scale.has_value()) tensors.push_back({"tensor_scale", tensor_scale});
  Tensor recv_ids;
  if (prepared.topk_ids.has_value()) {
    recv_ids = Tensor(prepared.topk_ids.dtype(), {num_rows, prepared.topk_ids.shape(1)});
    for (std::int64_t i = 0; i < num_rows; ++i) {
      copy_row(prepared.topk_ids, origins[static_cast<std::size_t>(i)].row, recv_ids, i);
    }
    tensors.push_back({"recv_topk_ids", recv_ids});
  }
  const auto path =
      std::filesystem::path(options_.dump) / fmt::format("rank{}.safetensors", group_.rank());
  write_safetensors(path.string(), tensors,
                    {{"row_source", "expert, source rank, source token, k"},
                     {"scheme", options_.scheme},
                     {"first_expert", std::to_string(first_expert_)}});
}

}  // namespace

RankResult run_layer(const Group& group, const RunOptions& options) {
  return LayerRun(group, options).run();
}

}  // namespace switchyard::cli
