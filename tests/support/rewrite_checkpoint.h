// SPDX-License-Identifier: Apache-2.0
//
// rewrite_checkpoint.h: writes the tensors of a model.safetensors under other names or in other
// layouts, as other tools would.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "io/safetensors.h"

namespace switchyard::test {

using TensorMap = std::map<std::string, Tensor>;

inline Tensor clone(const TensorView& view) {
  std::vector<std::int64_t> shape;
  for (int d = 0; d < view.num_dims(); ++d) shape.push_back(view.shape(d));
  Tensor copy(view.dtype(), shape);
  if (view.num_bytes() > 0) std::memcpy(copy.data(), view.data(), view.num_bytes());
  return copy;
}

inline std::vector<NamedTensor> named(const TensorMap& tensors) {
  std::vector<NamedTensor> result;
  for (const auto& [name, tensor] : tensors) result.push_back({name, tensor.view()});
  return result;
}

/// Hands all tensors of `folder`/model.safetensors to `change` and writes what it leaves.
inline void rewrite_checkpoint(const std::string& folder,
                               const std::function<void(TensorMap&)>& change) {
  const std::string path = folder + "/model.safetensors";
  TensorMap tensors;
  {
    const auto file = SafetensorsFile::open(path);
    for (const std::string& name : file->names()) tensors[name] = clone(file->tensor(name));
  }
  change(tensors);
  write_safetensors(path, named(tensors));
}

/// Replaces `from` at the start of every name.
inline void rename_prefix(TensorMap& tensors, const std::string& from, const std::string& to) {
  TensorMap renamed;
  for (auto& [name, tensor] : tensors) {
    const bool fits = name.starts_with(from);
    renamed[fits ? to + name.substr(from.size()) : name] = std::move(tensor);
  }
  tensors = std::move(renamed);
}

/// What fuse_experts makes of one layer.
struct FusedNames {
  std::string block;  ///< with the dot: "model.layers.1.mlp."
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";
};

inline Tensor transposed(const Tensor& matrix) {
  const std::int64_t rows = matrix.shape(0);
  const std::int64_t columns = matrix.shape(1);
  const std::size_t bytes = matrix.view().num_bytes() / static_cast<std::size_t>(rows * columns);
  Tensor result(matrix.dtype(), {columns, rows});
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      std::memcpy(result.as<std::byte>() + static_cast<std::size_t>(c * rows + r) * bytes,
                  matrix.as<std::byte>() + static_cast<std::size_t>(r * columns + c) * bytes,
                  bytes);
    }
  }
  return result;
}

/// One tensor of all experts from their parts, each [rows, columns], one below the other.
inline Tensor stack_parts(const std::vector<std::vector<const Tensor*>>& experts,
                          bool is_transposed) {
  std::int64_t rows = 0;
  for (const Tensor* part : experts.front()) rows += part->shape(0);
  const std::int64_t columns = experts.front().front()->shape(1);
  const auto num_experts = static_cast<std::int64_t>(experts.size());
  Tensor all(experts.front().front()->dtype(),
             {num_experts, is_transposed ? columns : rows, is_transposed ? rows : columns});
  std::byte* at = all.as<std::byte>();
  for (const auto& parts : experts) {
    Tensor expert(all.dtype(), {rows, columns});
    std::byte* to = expert.as<std::byte>();
    for (const Tensor* part : parts) {
      std::memcpy(to, part->data(), part->view().num_bytes());
      to += part->view().num_bytes();
    }
    if (is_transposed) expert = transposed(expert);
    std::memcpy(at, expert.data(), expert.view().num_bytes());
    at += expert.view().num_bytes();
  }
  return all;
}

/// The layout of transformers 5: experts.gate_up_proj [E, 2I, H] and experts.down_proj [E, H, I] in
/// a block called mlp, or both with their last two dimensions exchanged. Scales follow their
/// weights.
inline void fuse_experts(TensorMap& tensors, const FusedNames& names, bool is_transposed = false) {
  const std::string experts = names.block + "experts.";
  for (const std::string suffix : {"", "_scale_inv"}) {
    std::vector<std::vector<const Tensor*>> gate_up;
    std::vector<std::vector<const Tensor*>> down;
    const auto part = [&](std::size_t id, const std::string& projection) {
      const auto found =
          tensors.find(fmt::format("{}{}.{}.weight{}", experts, id, projection, suffix));
      return found == tensors.end() ? nullptr : &found->second;
    };
    while (const Tensor* gate = part(gate_up.size(), names.gate)) {
      gate_up.push_back({gate, part(gate_up.size(), names.up)});
      down.push_back({part(down.size(), names.down)});
    }
    if (gate_up.empty()) continue;
    tensors[experts + "gate_up_proj" + suffix] = stack_parts(gate_up, is_transposed);
    tensors[experts + "down_proj" + suffix] = stack_parts(down, is_transposed);
  }
  std::erase_if(tensors, [&](const auto& each) {
    return each.first.starts_with(experts) && each.first.find(".weight") != std::string::npos;
  });
  const std::string layer =
      names.block.substr(0, names.block.find_last_of('.', names.block.size() - 2));
  rename_prefix(tensors, names.block, layer + ".mlp.");
}

}  // namespace switchyard::test
