// SPDX-License-Identifier: Apache-2.0

#include "run_config.h"

#include <charconv>
#include <cmath>

#include "common_options.h"
#include "core/fail.h"
#include "global_scale.h"
#include "moe/prepare/prepare_recipe.h"
#include "quant/scale_rules.h"
#include "run_input.h"

namespace switchyard::cli {
namespace {

float parse_scale(const char* option, const std::string& text) {
  float scale = 0;
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, scale);
  require(error == std::errc{} && next == end && std::isfinite(scale) && scale > 0,
          Errc::kInvalidArgument, "run: {} is \"{}\", must be a number above 0{}", option, text,
          std::string(option) == "--intermediate-scale" ? "" : ", or auto");
  return scale;
}

bool is_auto_global(const RunOptions& options, const QuantScheme& scheme) {
  return scheme.needs_tensor_scale() &&
         (options.global_scale.empty() || options.global_scale == "auto");
}

std::optional<float> input_scale(const RunOptions& options, const QuantScheme& scheme,
                                 float magnitude) {
  if (magnitude == 0) magnitude = 1;  // rows of zeros: any scale fits
  if (is_auto_global(options, scheme)) return global_scale(magnitude);
  if (scheme.needs_tensor_scale()) return parse_scale("--global-scale", options.global_scale);
  if (options.static_scale.empty()) return std::nullopt;
  if (options.static_scale != "auto") return parse_scale("--static-scale", options.static_scale);
  return tensor_scale(magnitude, scheme.dtype);
}

std::optional<float> intermediate_scale(const RunOptions& options, const QuantScheme& scheme) {
  if (options.intermediate_scale.empty()) {
    return scheme.needs_tensor_scale() ? std::optional(kIntermediateGlobalScale) : std::nullopt;
  }
  return parse_scale("--intermediate-scale", options.intermediate_scale);
}

void check_scale(const char* option, const std::string& text, const RunOptions& options, bool fits,
                 const char* schemes) {
  if (text.empty()) return;
  require(fits, Errc::kInvalidArgument, "run: {} is given with --scheme {}, must be {}", option,
          options.scheme, schemes);
  if (text != "auto" || std::string(option) == "--intermediate-scale") parse_scale(option, text);
}

}  // namespace

Reduce RunConfig::reduce() const { return prepare.reduce.value_or(recipe_of(kind).reduce); }

QuantScheme RunConfig::wire_scheme() const { return wire_scheme_of(prepare); }

void check_run_options(const RunOptions& options) {
  const PrepareKind kind = *prepare_kind_from_name(options.prepare);
  const QuantScheme scheme = *scheme_from_name(options.scheme);
  const Layout layout = recipe_of(kind).layout;
  require(options.reduce != "per_expert" || is_expert_major(layout) || kind == PrepareKind::kLocal,
          Errc::kInvalidArgument,
          "run: --reduce per_expert is for low_latency, elastic_prefill and local; --prepare {} "
          "sums per_rank",
          options.prepare);
  require(options.alignment == 1 || kind == PrepareKind::kElasticPrefill, Errc::kInvalidArgument,
          "run: --alignment is {} with --prepare {}, must be elastic_prefill", options.alignment,
          options.prepare);
  require(options.dump.empty() || options.micro_batches == 1, Errc::kInvalidArgument,
          "run: --dump with --micro-batches {}, must be 1: a dump shows one batch",
          options.micro_batches);
  require_experts("run", options.experts, options.device);
  check_messages("run", options.exact_messages, options.host_capacity, options.device);
  const bool is_global = scheme.needs_tensor_scale();
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  check_scale("--global-scale", options.global_scale, options, is_global, "nvfp4");
  check_scale("--static-scale", options.static_scale, options, is_tensor,
              "fp8_tensor or int8_tensor");
  check_scale("--intermediate-scale", options.intermediate_scale, options, is_global || is_tensor,
              "nvfp4, fp8_tensor or int8_tensor");
}

bool wants_magnitude(const RunOptions& options) {
  return options.static_scale == "auto" ||
         is_auto_global(options, *scheme_from_name(options.scheme));
}

RunConfig make_run_config(const RunOptions& options, const ModelConfig& model, float magnitude,
                          std::int64_t max_tokens_per_rank) {
  RunConfig config;
  config.kind = *prepare_kind_from_name(options.prepare);
  PrepareFinalizeConfig& prepare = config.prepare;
  prepare.num_experts = model.num_experts();
  prepare.num_topk = model.num_topk();
  prepare.hidden = model.hidden;
  prepare.max_tokens_per_rank = max_tokens_per_rank;
  prepare.scheme = *scheme_from_name(options.scheme);
  if (row_dtype(options, model) == DType::kF32) prepare.scheme = {DType::kF32};
  prepare.combine_scheme = {result_dtype(options, model)};
  if (!options.reduce.empty()) prepare.reduce = *reduce_from_name(options.reduce);
  prepare.expert_alignment = options.alignment;
  prepare.num_micro_batches = options.micro_batches;
  prepare.static_scale = input_scale(options, prepare.scheme, magnitude);
  config.intermediate_scale = intermediate_scale(options, prepare.scheme);
  return config;
}

}  // namespace switchyard::cli
