// SPDX-License-Identifier: Apache-2.0
//
// weight_slots.h: where the weights that a combine returns lie in the window of the token's owner,
// for host and device code. Everything is a 64-bit record {value, tag}. The tag names the call, so
// nothing is ever cleared.
//
// Two sets alternate from call to call, as in push_layout.h.
//   set:  P      flags: rank p returns weights, which arrive before its rows
//         T x K  the weight of each choice
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace switchyard {

struct WeightSlots {
  std::int32_t num_topk = 0;
  std::size_t choices_offset = 0;  ///< within a set
  std::size_t set_bytes = 0;
  std::size_t total_bytes = 0;

  SWITCHYARD_HOST_DEVICE std::size_t flag(std::uint64_t call, int source) const {
    return static_cast<std::size_t>(call & 1) * set_bytes +
           static_cast<std::size_t>(source) * sizeof(std::uint64_t);
  }
  SWITCHYARD_HOST_DEVICE std::size_t choice(std::uint64_t call, std::int64_t token, int k) const {
    return static_cast<std::size_t>(call & 1) * set_bytes + choices_offset +
           static_cast<std::size_t>(token * num_topk + k) * sizeof(std::uint64_t);
  }
};

/// Errors: kInvalidArgument when a size overflows.
WeightSlots make_weight_slots(std::int64_t max_tokens, std::int32_t num_ranks,
                              std::int32_t num_topk);

}  // namespace switchyard
