// SPDX-License-Identifier: Apache-2.0

#include "io/moe_layer.h"

#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/fail.h"
#include "core/text.h"
#include "io/checked_tensor.h"
#include "io/expert_tensors.h"
#include "io/fused_experts.h"

namespace switchyard {
namespace {

// What comes before the number of a layer: in a model, in one inside a wrapper, as several versions
// of transformers write it (the last is what 5.24 makes of Kimi-K2.5), and without its head.
constexpr const char* kPrefixes[] = {"model.layers.",
                                     "model.language_model.layers.",
                                     "language_model.model.layers.",
                                     "language_model.layers.",
                                     "layers.",
                                     "language_model.model.blocks."};

/// Where a checkpoint keeps a layer.
struct LayerPlace {
  std::string block;  ///< "model.layers.N.mlp."
  const TensorNames* names;

  std::string router() const { return block + names->router; }
  std::string first_expert() const {
    if (names->is_mxfp4) return block + names->gate + kBlocksSuffix;
    return names->is_fused() ? block + names->gate
                             : fmt::format("{}experts.0.{}.weight", block, names->gate);
  }
};

LayerPlace place_of(const TensorNames& names, const char* prefix, std::int32_t layer) {
  return {fmt::format("{}{}.{}.", prefix, layer, names.block), &names};
}

// Opens no file. Where a layer has a router but no experts, its first place is as good as any.
std::optional<LayerPlace> find_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                                     std::int32_t layer) {
  std::optional<LayerPlace> found;
  for (const char* prefix : kPrefixes) {
    for (const std::optional<TensorNames>& names : config.family->names) {
      if (!names) continue;
      LayerPlace place = place_of(*names, prefix, layer);
      if (!checkpoint.contains(place.router())) continue;
      if (checkpoint.contains(place.first_expert())) return place;
      if (!found.has_value()) found = std::move(place);
    }
  }
  return found;
}

// The router of a layer that is not there.
std::string expected_router(const ModelConfig& config, std::int32_t layer) {
  return place_of(*config.family->names[0], kPrefixes[0], layer).router();
}

// For messages.
std::string describe_prefixes(const Checkpoint& checkpoint) {
  constexpr std::size_t kMaxPrefixes = 4;
  constexpr std::string_view kLayers = "layers.";
  std::set<std::string> prefixes;
  const std::vector<std::string> names = checkpoint.names();
  for (const std::string& name : names) {
    const std::size_t at = name.find(kLayers);
    if (at == name.npos || (at > 0 && name[at - 1] != '.')) continue;
    if (prefixes.size() < kMaxPrefixes) prefixes.insert(quote(name.substr(0, at + kLayers.size())));
  }
  if (prefixes.empty()) {
    return names.empty() ? "" : fmt::format("; its first tensor is {}", quote(names.front()));
  }
  std::vector<std::string> known;
  for (const char* prefix : kPrefixes) known.push_back(quote(prefix));
  return fmt::format("; its layers begin with {}, must begin with {}", fmt::join(prefixes, ", "),
                     fmt::join(known, ", "));
}

std::vector<std::int32_t> layers_present(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::vector<std::int32_t> present;
  for (const std::int32_t layer : config.moe_layers) {
    if (find_layer(checkpoint, config, layer).has_value()) present.push_back(layer);
  }
  return present;
}

LayerPlace checked_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                         std::int32_t layer) {
  require(layer >= 0 && layer < config.num_layers, Errc::kInvalidArgument,
          "load_moe_layer: layer {} is asked for, but {} has layers 0 to {}", layer,
          checkpoint.path(), config.num_layers - 1);
  if (!config.is_moe_layer(layer)) {
    fail(Errc::kInvalidArgument, "load_moe_layer: layer {} of {} is dense; its MoE layers are {}",
         layer, checkpoint.path(), format_ranges(config.moe_layers));
  }
  if (std::optional<LayerPlace> place = find_layer(checkpoint, config, layer)) return *place;
  const std::vector<std::int32_t> present = layers_present(checkpoint, config);
  fail(Errc::kInvalidArgument, "load_moe_layer: {} does not hold layer {} (no tensor {}){}",
       checkpoint.path(), layer, quote(expected_router(config, layer)),
       present.empty() ? describe_prefixes(checkpoint)
                       : "; it holds the MoE layers " + format_ranges(present));
}

void check_experts(const ModelConfig& config, std::span<const std::int32_t> expert_ids) {
  for (const std::int32_t id : expert_ids) {
    require(id >= 0 && id < config.num_experts(), Errc::kInvalidArgument,
            "load_moe_layer: expert {} is asked for, but {} has experts 0 to {}", id, config.path,
            config.num_experts() - 1);
  }
}

// What is in the file takes part in the layer, or is refused.
void refuse_bias(const Checkpoint& checkpoint, const std::string& name) {
  require(!checkpoint.contains(name), Errc::kNotSupported,
          "load_moe_layer: {} has {}, must be experts without biases", checkpoint.path(),
          quote(name));
}

void refuse_biases(const Checkpoint& checkpoint, std::span<const std::string> modules,
                   const TensorNames& names) {
  for (const std::string& module : modules) {
    for (const char* projection : {names.gate, names.up, names.down}) {
      refuse_bias(checkpoint, fmt::format("{}.{}.bias", module, projection));
    }
  }
}

void load_experts(const Checkpoint& checkpoint, const ModelConfig& config, const LayerPlace& place,
                  std::span<const std::int32_t> expert_ids, ExpertTensors& out) {
  const MlpSizes sizes{config.hidden, config.moe_intermediate};
  if (place.names->is_fused()) {
    const FusedExperts fused{checkpoint, place.block,          *place.names,
                             sizes,      config.num_experts(), expert_ids};
    place.names->is_mxfp4 ? load_mxfp4_experts(fused, out) : load_fused_experts(fused, out);
    if (config.has_expert_bias) return load_fused_biases(fused, out);
    for (const char* projection : {place.names->gate, place.names->down}) {
      refuse_bias(checkpoint, fmt::format("{}{}_bias", place.block, projection));
    }
    return;
  }
  std::vector<std::string> modules;
  for (const std::int32_t id : expert_ids) {
    modules.push_back(fmt::format("{}experts.{}", place.block, id));
  }
  if (modules.empty()) modules.push_back(place.block + "experts.0");
  refuse_biases(checkpoint, modules, *place.names);
  load_separate_experts(checkpoint, modules, *place.names, sizes, expert_ids.size(), out);
}

}  // namespace

ExpertWeights ExpertTensors::view() const {
  return {gate.view(),
          up.view(),
          down.view(),
          gate_scale.view(),
          up_scale.view(),
          down_scale.view(),
          block,
          {},
          {},
          {},
          gate_bias.view(),
          up_bias.view(),
          down_bias.view()};
}

std::int32_t first_moe_layer(const Checkpoint& checkpoint, const ModelConfig& config) {
  for (const std::int32_t layer : config.moe_layers) {
    if (find_layer(checkpoint, config, layer).has_value()) return layer;
  }
  fail(Errc::kInvalidArgument,
       "load_moe_layer: {} holds none of the MoE layers {} (no tensor {}){}", checkpoint.path(),
       format_ranges(config.moe_layers), quote(expected_router(config, config.moe_layers.front())),
       describe_prefixes(checkpoint));
}

MoeLayerWeights load_moe_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                               std::int32_t layer, std::span<const std::int32_t> expert_ids) {
  MoeLayerWeights result;
  result.layer = layer == -1 ? first_moe_layer(checkpoint, config) : layer;
  const LayerPlace place = checked_layer(checkpoint, config, result.layer);
  check_experts(config, expert_ids);
  load_experts(checkpoint, config, place, expert_ids, result.experts);
  result.router_gate =
      load_plain(checkpoint, place.router(), {config.num_experts(), config.hidden});
  if (config.has_router_bias) {
    result.router_bias =
        load_widened(checkpoint, place.block + place.names->router_bias, {config.num_experts()});
  }
  if (config.shared_intermediate > 0) {
    const std::string shared[] = {place.block + place.names->shared};
    load_separate_experts(checkpoint, shared, TensorNames{},
                          {config.hidden, config.shared_intermediate}, 1, result.shared);
    if (config.has_shared_bias) {
      const auto load = [&](const char* projection, std::int64_t width) {
        const std::string name = fmt::format("{}.{}.bias", shared[0], projection);
        return load_widened(checkpoint, name, {1, width});
      };
      result.shared.gate_bias = load("gate_proj", config.shared_intermediate);
      result.shared.up_bias = load("up_proj", config.shared_intermediate);
      result.shared.down_bias = load("down_proj", config.hidden);
    } else {
      refuse_biases(checkpoint, shared, TensorNames{});
    }
  }
  if (config.has_shared_gate) {
    result.shared_gate =
        load_plain(checkpoint, place.block + place.names->shared_gate, {1, config.hidden});
  }
  return result;
}

MoeLayerWeights load_moe_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                               std::int32_t layer, std::int32_t first_expert,
                               std::int32_t num_local_experts) {
  const std::int64_t end = std::int64_t{first_expert} + num_local_experts;
  require(first_expert >= 0 && num_local_experts >= 0 && end <= config.num_experts(),
          Errc::kInvalidArgument,
          "load_moe_layer: experts {} to {} are asked for, but {} has experts 0 to {}",
          first_expert, end - 1, config.path, config.num_experts() - 1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(num_local_experts));
  std::iota(ids.begin(), ids.end(), first_expert);
  return load_moe_layer(checkpoint, config, layer, ids);
}

}  // namespace switchyard
