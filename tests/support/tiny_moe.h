// SPDX-License-Identifier: Apache-2.0
//
// tiny_moe.h: the shipped MoE layer (data/tiny-moe) as tables of the oracle.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "core/fail.h"
#include "io/safetensors.h"
#include "reference/reference.h"

namespace switchyard::test {

inline std::shared_ptr<const SafetensorsFile> open_tiny_moe(const std::string& file) {
  return SafetensorsFile::open(std::string(SWITCHYARD_DATA_DIR) + "/tiny-moe/" + file);
}

/// Loads a bf16 or f32 tensor of two dimensions.
inline reference::Table<float> load_table(const SafetensorsFile& file, std::string_view name) {
  const TensorView view = file.tensor(name);
  require(view.num_dims() == 2 && (view.dtype() == DType::kBF16 || view.dtype() == DType::kF32),
          Errc::kMalformedFile, "load_table: {} is {}, must be bf16 or f32 [R, C]", name,
          view.describe());
  reference::Table<float> table(view.shape(0), view.shape(1));
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = view.dtype() == DType::kF32
                        ? view.as<const float>()[i]
                        : std::bit_cast<float>(
                              static_cast<std::uint32_t>(view.as<const std::uint16_t>()[i]) << 16);
  }
  return table;
}

inline reference::Table<std::int32_t> load_ids(const SafetensorsFile& file, std::string_view name) {
  const TensorView view = file.tensor(name);
  reference::Table<std::int32_t> table(view.shape(0), view.shape(1));
  std::copy_n(view.as<const std::int32_t>(), table.data.size(), table.data.begin());
  return table;
}

inline RouterConfig tiny_moe_router() {
  RouterConfig router;
  router.num_experts = 32;
  router.num_topk = 4;
  router.norm_topk_prob = true;
  return router;
}

inline reference::Layer load_tiny_moe() {
  const auto file = open_tiny_moe("model.safetensors");
  const std::string prefix = "model.layers.2.mlp.";
  reference::Layer layer;
  layer.router = tiny_moe_router();
  layer.router_gate = load_table(*file, prefix + "gate.weight");
  layer.experts = {32, 256, 128, {0, 256}, {0, 256}, {0, 128}};
  const auto append = [&](reference::Table<float>& table, const std::string& name) {
    const reference::Table<float> part = load_table(*file, prefix + name);
    table.data.insert(table.data.end(), part.data.begin(), part.data.end());
    table.rows += part.rows;
  };
  for (int e = 0; e < 32; ++e) {
    const std::string expert = "experts." + std::to_string(e) + ".";
    append(layer.experts.gate, expert + "gate_proj.weight");
    append(layer.experts.up, expert + "up_proj.weight");
    append(layer.experts.down, expert + "down_proj.weight");
  }
  layer.shared =
      reference::MlpWeights{1,
                            256,
                            256,
                            load_table(*file, prefix + "shared_experts.gate_proj.weight"),
                            load_table(*file, prefix + "shared_experts.up_proj.weight"),
                            load_table(*file, prefix + "shared_experts.down_proj.weight")};
  return layer;
}

}  // namespace switchyard::test
