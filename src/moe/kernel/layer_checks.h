// SPDX-License-Identifier: Apache-2.0
//
// layer_checks.h: what the modular kernel refuses. Errors: kInvalidArgument.
#pragma once

#include "switchyard/modular_kernel.h"

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "moe/prepare/prepare_recipe.h"

namespace switchyard {

/// Rows arrive one per token.
inline bool is_token_major(PrepareKind kind) { return !is_expert_major(recipe_of(kind).layout); }

inline void check_shared_gate(const TensorView& gate, std::int64_t hidden) {
  if (!gate.has_value()) return;
  const bool dtype_fits =
      gate.dtype() == DType::kBF16 || gate.dtype() == DType::kF16 || gate.dtype() == DType::kF32;
  const bool is_row = gate.num_dims() == 1 || (gate.num_dims() == 2 && gate.shape(0) == 1);
  require(dtype_fits && is_row && gate.is_contiguous() && gate.num_elements() == hidden,
          Errc::kInvalidArgument,
          "modular_kernel: shared gate is {}, must be bf16, f16 or f32 [{}] or [1, {}]", gate,
          hidden, hidden);
}

/// The parts of a kernel fit together, on one device.
inline void check_parts(const PrepareFinalize* prepare_finalize, const Experts* experts,
                        const SharedExpert& shared) {
  require(prepare_finalize != nullptr && experts != nullptr, Errc::kInvalidArgument,
          "modular_kernel: prepare_finalize and experts must both be given");
  const Device device = prepare_finalize->device();
  const auto require_same = [&](const char* name, const Experts* part) {
    require(part == nullptr || part->device() == device, Errc::kInvalidArgument,
            "modular_kernel: {} are on {}, must be on {} as prepare_finalize", name,
            name_of(part == nullptr ? device : part->device()), name_of(device));
  };
  require_same("experts", experts);
  require_same("shared experts", shared.experts.get());
  const auto require_count = [](const char* name, const Experts* part, std::int32_t wanted,
                                const char* who) {
    const std::int32_t found =
        part == nullptr ? wanted : part->num_local_experts().value_or(wanted);
    require(found == wanted, Errc::kInvalidArgument,
            "modular_kernel: {} have the weights of {} experts, must have those of {}, {}", name,
            found, wanted, who);
  };
  require_count("experts", experts, prepare_finalize->num_local_experts(),
                "as prepare_finalize has on this rank");
  require_count("shared experts", shared.experts.get(), 1, "which every token visits");
  require(shared.experts == nullptr || shared.order != SharedExpertsOrder::kNone,
          Errc::kInvalidArgument,
          "modular_kernel: a shared expert is given with order none, must be no_overlap or "
          "mk_internal_overlapped");
  require_device("modular_kernel", device, {{"shared gate", shared.gate}});
  check_shared_gate(shared.gate, prepare_finalize->hidden());
}

/// Of a call: output [T, H].
inline void check_call(const TensorView& output, std::int64_t num_tokens, std::int64_t hidden,
                       bool weighs_in_place, bool has_shared) {
  check_matrix(output, {"modular_kernel",
                        "output",
                        {DType::kBF16, DType::kF16, DType::kF32},
                        num_tokens,
                        hidden,
                        true});
  require(!weighs_in_place || !has_shared, Errc::kInvalidArgument,
          "modular_kernel: weighs_in_place is set, must not be with a shared expert, which reads "
          "the same rows");
}

}  // namespace switchyard
