// SPDX-License-Identifier: Apache-2.0

#include "measure/bench_shape.h"

#include <algorithm>
#include <set>

#include "switchyard/scale_layout.h"

#include "core/fail.h"
#include "quant/scheme.h"

namespace switchyard::measure {
namespace {

bool is_exchange(Operation operation) { return operation != Operation::kLayer; }

}  // namespace

ExchangeConfig BenchShape::exchange_config() const {
  ExchangeConfig config;
  config.num_experts = workload.num_experts;
  config.num_topk = workload.num_topk;
  config.hidden = workload.hidden;
  config.max_tokens_per_rank = max_tokens_per_rank();
  config.layout = layout;
  config.scheme = scheme;
  config.scale_layout = scale_layout;
  config.combine_scheme = returned;
  config.reduce = reduce;
  return config;
}

int BenchShape::num_hosts() const {
  return hosts.empty() ? 1 : static_cast<int>(std::set<int>(hosts.begin(), hosts.end()).size());
}

bool wants_tensor_scale(const QuantScheme& scheme) noexcept {
  return scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale();
}

float tensor_scale_of(const QuantScheme& scheme) noexcept {
  constexpr float kLargestValue = 2.0f;  // of the values of BenchBatch
  if (scheme.needs_tensor_scale()) return 448.0f * 6.0f / kLargestValue;
  if (scheme.group != ScaleGroup::kTensor) return 1.0f;
  return kLargestValue / (scheme.dtype == DType::kI8 ? 127.0f : 448.0f);
}

void check_shape(const BenchShape& shape) {
  require(
      shape.num_tokens >= 1 && shape.num_runs >= 1 && shape.num_layers >= 1 && shape.num_ranks >= 1,
      Errc::kInvalidArgument, "bench: {} tokens, {} runs, {} layers, {} ranks, must be at least 1",
      shape.num_tokens, shape.num_runs, shape.num_layers, shape.num_ranks);
  require(shape.max_tokens == 0 || shape.max_tokens >= shape.num_tokens, Errc::kInvalidArgument,
          "bench: --max-tokens is {}, must be at least the {} tokens of a line", shape.max_tokens,
          shape.num_tokens);
  require(shape.routing.num_experts() == shape.workload.num_experts &&
              shape.routing.num_topk() == shape.workload.num_topk,
          Errc::kInvalidArgument,
          "bench: routing is for {} experts and top-{}, workload has {} and {}",
          shape.routing.num_experts(), shape.routing.num_topk(), shape.workload.num_experts,
          shape.workload.num_topk);
  require(
      shape.layout != Layout::kAllGather, Errc::kNotSupported,
      "bench: layout all_gather is not measured; must be batched, expanded, compact or by_rank");
  require(!shape.scheme.is_simulated(), Errc::kNotSupported,
          "bench: scheme {} is simulated and saves no bytes; choose another",
          name_of(shape.scheme));
  require(!shape.returned.is_quantized() || has_row_scales(shape.returned), Errc::kNotSupported,
          "bench: --returned {}, must be none or a scheme with scales in each row",
          name_of(shape.returned));
  require(shape.scale_layout == ScaleLayout::kRowMajor ||
              (has_row_scales(shape.scheme) && is_exchange(shape.operation)),
          Errc::kInvalidArgument,
          "bench: --scales {} with --scheme {} and --op {}, must be a scheme with scales in each "
          "row and dispatch, combine or pair",
          name_of(shape.scale_layout), name_of(shape.scheme), name_of(shape.operation));
  const std::vector<ScaleLayout> layouts = layouts_of(shape.scheme);
  require(shape.scale_layout == ScaleLayout::kRowMajor ||
              std::find(layouts.begin(), layouts.end(), shape.scale_layout) != layouts.end(),
          Errc::kInvalidArgument,
          "bench: --scales {} with --scheme {}, must be a layout that the scheme has: swizzled "
          "needs scales of one byte",
          name_of(shape.scale_layout), name_of(shape.scheme));
  require(!shape.gives_codes || (shape.scheme.is_quantized() && is_exchange(shape.operation)),
          Errc::kInvalidArgument,
          "bench: --codes with --scheme {} and --op {}, must be a quantized scheme and dispatch, "
          "combine or pair",
          name_of(shape.scheme), name_of(shape.operation));
  require(
      !shape.returned.is_quantized() || is_exchange(shape.operation) || shape.experts == "exact",
      Errc::kInvalidArgument,
      "bench: --returned {} with --experts {}, must be exact: the check of others would take "
      "the steps of codes for errors",
      name_of(shape.returned), shape.experts);
  require(shape.reduce != Reduce::kPerExpert || is_expert_major(shape.layout),
          Errc::kInvalidArgument,
          "bench: --reduce per_expert with --layout {}, must be batched or expanded; the others "
          "sum per_rank",
          name_of(shape.layout));
  require(shape.num_layers == 1 || shape.operation == Operation::kPair ||
              shape.operation == Operation::kLayer,
          Errc::kInvalidArgument, "bench: --layers is {} with --op {}, must be pair or layer",
          shape.num_layers, name_of(shape.operation));
  require(shape.operation == Operation::kLayer ||
              (shape.experts == "exact" && shape.num_micro_batches == 1),
          Errc::kInvalidArgument,
          "bench: --experts {} and --micro-batches {} with --op {}, must be layer, or exact and 1",
          shape.experts, shape.num_micro_batches, name_of(shape.operation));
  require(
      shape.num_shared_experts == 0 ||
          (shape.operation == Operation::kLayer && shape.experts != "cublas"),
      Errc::kInvalidArgument,
      "bench: --shared-experts {} with --op {} and --experts {}, must be layer, and exact, onednn "
      "or cutlass: a run cannot be held back while cublas waits for the shared rows",
      shape.num_shared_experts, name_of(shape.operation), shape.experts);
  require(shape.experts != "cublas" || shape.layout == Layout::kBatched, Errc::kInvalidArgument,
          "bench: --experts cublas with --layout {}, whose counts they read on the host while the "
          "start of a run is held back; must be --layout batched, or --experts cutlass",
          name_of(shape.layout));
  require(!(shape.has_cold_code || shape.has_skew || shape.has_stages) ||
              shape.operation != Operation::kLayer,
          Errc::kInvalidArgument,
          "bench: --cold-code, --skew or --stages with --op layer, must be dispatch, combine or "
          "pair");
  require(!(shape.has_cold_code || shape.has_skew) || shape.num_hosts() == 1, Errc::kNotSupported,
          "bench: --cold-code or --skew with ranks on {} hosts, must be on one: calls are timed "
          "from when all ranks are there, which they see in memory that they share",
          shape.num_hosts());
  constexpr int kMaxStagedLayers = 100;  // of the launches that a log has room for
  require(!shape.has_stages || shape.num_layers <= kMaxStagedLayers, Errc::kInvalidArgument,
          "bench: --stages with --layers {}, must be at most {}", shape.num_layers,
          kMaxStagedLayers);
}

}  // namespace switchyard::measure
