// SPDX-License-Identifier: Apache-2.0

#include "io/moe_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/fail.h"
#include "core/text.h"

namespace switchyard {
namespace {

constexpr std::int64_t kScaleBlock = 128;

/// How a family names its tensors under "model.layers.N.".
struct LayerNames {
  const char* block;  // module of the MoE layer
  const char* gate;   // projections of a routed expert
  const char* up;
  const char* down;
  const char* shared;  // module of the shared experts
};

LayerNames names_of(ModelFamily family) {
  switch (family) {
    case ModelFamily::kMixtral: return {"block_sparse_moe", "w1", "w3", "w2", ""};
    case ModelFamily::kQwen2Moe:
      return {"mlp", "gate_proj", "up_proj", "down_proj", "shared_expert"};
    default: return {"mlp", "gate_proj", "up_proj", "down_proj", "shared_experts"};
  }
}

std::string layer_prefix(const ModelConfig& config, std::int32_t layer) {
  return fmt::format("model.layers.{}.{}.", layer, names_of(config.family).block);
}

std::string router_name(const ModelConfig& config, std::int32_t layer) {
  return layer_prefix(config, layer) + "gate.weight";
}

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

TensorView checked_tensor(const Checkpoint& checkpoint, const std::string& name,
                          std::span<const std::int64_t> shape) {
  const TensorView view = checkpoint.tensor(name);
  bool same = view.num_dims() == static_cast<int>(shape.size());
  for (std::size_t dim = 0; same && dim < shape.size(); ++dim) {
    same = view.shape(static_cast<int>(dim)) == shape[dim];
  }
  if (!same) {
    fail(Errc::kMalformedFile, "load_moe_layer: tensor {} of {} is {}, but config.json says [{}]",
         quote(name), checkpoint.file_of(name), view.describe(), fmt::join(shape, ", "));
  }
  return view;
}

[[noreturn]] void fail_dtype(const Checkpoint& checkpoint, const std::string& name,
                             const TensorView& view, const char* want) {
  fail(Errc::kMalformedFile, "load_moe_layer: tensor {} of {} is {}, want {}", quote(name),
       checkpoint.file_of(name), view.describe(), want);
}

Tensor copy_of(const TensorView& view, std::span<const std::int64_t> shape) {
  Tensor result(view.dtype(), shape);
  if (view.num_bytes() > 0) std::memcpy(result.data(), view.data(), view.num_bytes());
  return result;
}

// f16, bf16 and power-of-two scales are exact in f32.
float f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float magnitude = std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction + 1024),
                               std::max(exponent, 1) - 25);
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

float bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

float e8m0_value(std::uint8_t byte) {
  return byte == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, byte - 127);
}

// Checkpoints store biases and scales in several dtypes; callers get f32.
void widen(const Checkpoint& checkpoint, const std::string& name, const TensorView& view,
           float* out) {
  const auto count = static_cast<std::size_t>(view.num_elements());
  const auto* words = view.as<const std::uint16_t>();
  const auto* bytes = view.as<const std::uint8_t>();
  switch (view.dtype()) {
    case DType::kF32:
      if (count > 0) std::memcpy(out, view.data(), count * sizeof(float));
      return;
    case DType::kF16: std::transform(words, words + count, out, f16_value); return;
    case DType::kBF16: std::transform(words, words + count, out, bf16_value); return;
    case DType::kE8M0: std::transform(bytes, bytes + count, out, e8m0_value); return;
    default: fail_dtype(checkpoint, name, view, "f32, bf16, f16 or e8m0");
  }
}

/// One projection of several experts, each [rows, columns].
struct Stack {
  std::vector<std::string> names;
  std::int64_t rows;
  std::int64_t columns;
};

void load_scales(const Checkpoint& checkpoint, const Stack& stack, std::size_t num_local,
                 Tensor& scales) {
  const std::int64_t shape[] = {cdiv(stack.rows, kScaleBlock), cdiv(stack.columns, kScaleBlock)};
  std::vector<std::string> names;
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < num_local; ++i) {
    names.push_back(stack.names[i] + "_scale_inv");
    views.push_back(checked_tensor(checkpoint, names.back(), shape));
  }
  scales = Tensor(DType::kF32, {static_cast<std::int64_t>(num_local), shape[0], shape[1]});
  for (std::size_t i = 0; i < num_local; ++i) {
    widen(checkpoint, names[i], views[i],
          scales.as<float>() + static_cast<std::int64_t>(i) * shape[0] * shape[1]);
  }
}

// All shapes are checked against the file before memory is allocated, so a hostile config.json
// cannot request more than the checkpoint holds. `num_local` may be 0; the one name then still
// determines the dtype.
void load_stack(const Checkpoint& checkpoint, const Stack& stack, std::size_t num_local,
                Tensor& weights, Tensor& scales) {
  const std::int64_t shape[] = {stack.rows, stack.columns};
  std::vector<TensorView> views;
  for (const std::string& name : stack.names) {
    const TensorView view = checked_tensor(checkpoint, name, shape);
    const DType dtype = views.empty() ? view.dtype() : views.front().dtype();
    if (view.dtype() != dtype) {
      fail_dtype(checkpoint, name, view, "the dtype of the other experts");
    }
    if (!is_weight_dtype(dtype) && dtype != DType::kE4M3) {
      fail_dtype(checkpoint, name, view, "bf16, f16, f32 or e4m3");
    }
    views.push_back(view);
  }
  weights = Tensor(views.front().dtype(),
                   {static_cast<std::int64_t>(num_local), stack.rows, stack.columns});
  const std::size_t num_bytes = views.front().num_bytes();
  for (std::size_t i = 0; i < num_local; ++i) {
    std::memcpy(weights.as<std::byte>() + i * num_bytes, views[i].data(), num_bytes);
  }
  if (weights.dtype() == DType::kE4M3) load_scales(checkpoint, stack, num_local, scales);
}

struct Projections {
  const char* gate;
  const char* up;
  const char* down;
};

void load_mlp(const Checkpoint& checkpoint, std::span<const std::string> modules,
              const Projections& names, std::int64_t intermediate, std::int64_t hidden,
              std::size_t num_local, ExpertTensors& out) {
  const auto stack = [&](const char* projection, std::int64_t rows, std::int64_t columns) {
    Stack result{{}, rows, columns};
    for (const std::string& module : modules) {
      result.names.push_back(fmt::format("{}.{}.weight", module, projection));
    }
    return result;
  };
  load_stack(checkpoint, stack(names.gate, intermediate, hidden), num_local, out.gate,
             out.gate_scale);
  load_stack(checkpoint, stack(names.up, intermediate, hidden), num_local, out.up, out.up_scale);
  load_stack(checkpoint, stack(names.down, hidden, intermediate), num_local, out.down,
             out.down_scale);
}

Tensor load_plain(const Checkpoint& checkpoint, const std::string& name,
                  std::initializer_list<std::int64_t> shape) {
  const TensorView view = checked_tensor(checkpoint, name, std::span(shape.begin(), shape.size()));
  if (!is_weight_dtype(view.dtype())) fail_dtype(checkpoint, name, view, "bf16, f16 or f32");
  return copy_of(view, std::span(shape.begin(), shape.size()));
}

std::vector<std::int32_t> layers_present(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::vector<std::int32_t> present;
  for (const std::int32_t layer : config.moe_layers) {
    if (checkpoint.contains(router_name(config, layer))) present.push_back(layer);
  }
  return present;
}

void check_layer(const Checkpoint& checkpoint, const ModelConfig& config, std::int32_t layer) {
  require(layer >= 0 && layer < config.num_layers, Errc::kInvalidArgument,
          "load_moe_layer: layer {} is asked for, but {} has layers 0 to {}", layer,
          checkpoint.path(), config.num_layers - 1);
  if (!config.is_moe_layer(layer)) {
    fail(Errc::kInvalidArgument, "load_moe_layer: layer {} of {} is dense; its MoE layers are {}",
         layer, checkpoint.path(), format_ranges(config.moe_layers));
  }
  if (!checkpoint.contains(router_name(config, layer))) {
    fail(Errc::kInvalidArgument,
         "load_moe_layer: {} does not hold layer {} (no tensor {}); it holds the MoE layers {}",
         checkpoint.path(), layer, quote(router_name(config, layer)),
         format_ranges(layers_present(checkpoint, config)));
  }
}

void check_experts(const ModelConfig& config, std::span<const std::int32_t> expert_ids) {
  for (const std::int32_t id : expert_ids) {
    require(id >= 0 && id < config.num_experts(), Errc::kInvalidArgument,
            "load_moe_layer: expert {} is asked for, but {} has experts 0 to {}", id, config.path,
            config.num_experts() - 1);
  }
}

}  // namespace

ExpertWeights ExpertTensors::view() const {
  return {gate.view(),       up.view(),       down.view(),
          gate_scale.view(), up_scale.view(), down_scale.view()};
}

std::int32_t first_moe_layer(const Checkpoint& checkpoint, const ModelConfig& config) {
  for (const std::int32_t layer : config.moe_layers) {
    if (checkpoint.contains(router_name(config, layer))) return layer;
  }
  fail(Errc::kInvalidArgument, "load_moe_layer: {} holds none of the MoE layers {} (no tensor {})",
       checkpoint.path(), format_ranges(config.moe_layers),
       quote(router_name(config, config.moe_layers.front())));
}

MoeLayerWeights load_moe_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                               std::int32_t layer, std::span<const std::int32_t> expert_ids) {
  MoeLayerWeights result;
  result.layer = layer == -1 ? first_moe_layer(checkpoint, config) : layer;
  check_layer(checkpoint, config, result.layer);
  check_experts(config, expert_ids);
  const LayerNames names = names_of(config.family);
  const std::string prefix = layer_prefix(config, result.layer);

  std::vector<std::string> modules;
  for (const std::int32_t id : expert_ids)
    modules.push_back(fmt::format("{}experts.{}", prefix, id));
  if (modules.empty()) modules.push_back(prefix + "experts.0");
  load_mlp(checkpoint, modules, {names.gate, names.up, names.down}, config.moe_intermediate,
           config.hidden, expert_ids.size(), result.experts);
  result.router_gate = load_plain(checkpoint, router_name(config, result.layer),
                                  {config.num_experts(), config.hidden});
  if (config.has_router_bias) {
    const std::string name = prefix + "gate.e_score_correction_bias";
    const std::int64_t shape[] = {config.num_experts()};
    const TensorView view = checked_tensor(checkpoint, name, shape);
    result.router_bias = Tensor(DType::kF32, shape);
    widen(checkpoint, name, view, result.router_bias.as<float>());
  }
  if (config.shared_intermediate > 0) {
    const std::string shared[] = {prefix + names.shared};
    load_mlp(checkpoint, shared, {"gate_proj", "up_proj", "down_proj"}, config.shared_intermediate,
             config.hidden, 1, result.shared);
  }
  if (config.has_shared_gate) {
    result.shared_gate =
        load_plain(checkpoint, prefix + "shared_expert_gate.weight", {1, config.hidden});
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
