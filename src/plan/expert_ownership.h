// SPDX-License-Identifier: Apache-2.0
//
// expert_ownership.h: which rank holds an expert. Experts are assigned to ranks in order; when
// their number is not a multiple of the number of ranks, the first ranks hold one more each (vLLM's
// "linear" expert map). Where experts are sliced over the ranks, every rank holds them all.
#pragma once

#include "core/host_device.h"

namespace switchyard {

struct ExpertOwnership {
  int num_experts = 0;
  int num_ranks = 1;
  bool is_sliced = false;  ///< then an expert has no single owner

  SWITCHYARD_HOST_DEVICE constexpr int base() const { return num_experts / num_ranks; }
  SWITCHYARD_HOST_DEVICE constexpr int extra() const { return num_experts % num_ranks; }

  /// Number of experts that `rank` holds.
  SWITCHYARD_HOST_DEVICE constexpr int count(int rank) const {
    return is_sliced ? num_experts : base() + (rank < extra() ? 1 : 0);
  }
  /// Global id of the first expert of `rank`.
  SWITCHYARD_HOST_DEVICE constexpr int first(int rank) const {
    return is_sliced ? 0 : rank * base() + (rank < extra() ? rank : extra());
  }
  /// The rank that holds `expert`.
  SWITCHYARD_HOST_DEVICE constexpr int owner(int expert) const {
    const int in_larger = extra() * (base() + 1);
    if (expert < in_larger) return expert / (base() + 1);
    return extra() + (expert - in_larger) / base();
  }
  SWITCHYARD_HOST_DEVICE constexpr int local_index(int expert) const {
    return expert - first(owner(expert));
  }
  /// The largest number of experts that any rank holds.
  SWITCHYARD_HOST_DEVICE constexpr int max_count() const { return count(0); }
};

}  // namespace switchyard
