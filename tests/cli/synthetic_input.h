// SPDX-License-Identifier: Apache-2.0
//
// synthetic_input.h: the input of `run` for a synthetic checkpoint.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "support/synthetic_checkpoint.h"

namespace switchyard::test {

/// Writes the input of a synthetic checkpoint and its independently computed output.
inline void write_input(const std::string& path, const SyntheticCheckpoint& made) {
  const auto table = [&](const std::vector<double>& values) {
    Tensor tensor(DType::kF32, {made.num_tokens, made.hidden});
    std::transform(values.begin(), values.end(), tensor.as<float>(),
                   [](double value) { return static_cast<float>(value); });
    return tensor;
  };
  const Tensor routed = table(made.routed_output);
  const Tensor shared = table(made.shared_output);
  const TensorView hidden(made.hidden_states.data(), DType::kBF16, {made.num_tokens, made.hidden});
  const std::vector<NamedTensor> tensors{
      {"hidden_states", hidden}, {"routed_output", routed}, {"shared_output", shared}};
  write_safetensors(path, tensors);
}

}  // namespace switchyard::test
