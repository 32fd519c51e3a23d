// SPDX-License-Identifier: Apache-2.0
//
// expert_ownership.h: which rank holds an expert. Experts are assigned to ranks in order, as many
// to each as a table says. Without a table ranks hold equal numbers; when there are experts left,
// the first ranks hold one more each (vLLM's "linear" expert map). Where experts are sliced over
// the ranks, every rank holds them all.
#pragma once

#include "core/host_device.h"

namespace switchyard {

struct ExpertOwnership {
  int num_experts = 0;
  int num_ranks = 1;
  bool is_sliced = false;  ///< then an expert has no single owner
  /// [P + 1] the first expert of each rank, then E; null: equal numbers. Kept alive by whoever made
  /// it.
  const int* table = nullptr;

  SWITCHYARD_HOST_DEVICE constexpr int base() const { return num_experts / num_ranks; }
  SWITCHYARD_HOST_DEVICE constexpr int extra() const { return num_experts % num_ranks; }

  /// Number of experts that `rank` holds.
  SWITCHYARD_HOST_DEVICE constexpr int count(int rank) const {
    if (table != nullptr) return table[rank + 1] - table[rank];
    return is_sliced ? num_experts : base() + (rank < extra() ? 1 : 0);
  }
  /// Global id of the first expert of `rank`.
  SWITCHYARD_HOST_DEVICE constexpr int first(int rank) const {
    if (table != nullptr) return table[rank];
    return is_sliced ? 0 : rank * base() + (rank < extra() ? rank : extra());
  }
  /// The rank that holds `expert`.
  SWITCHYARD_HOST_DEVICE constexpr int owner(int expert) const {
    if (table != nullptr) return owner_in_table(expert);
    const int in_larger = extra() * (base() + 1);
    if (expert < in_larger) return expert / (base() + 1);
    return extra() + (expert - in_larger) / base();
  }
  SWITCHYARD_HOST_DEVICE constexpr int local_index(int expert) const {
    return expert - first(owner(expert));
  }
  /// The largest number of experts that any rank holds.
  SWITCHYARD_HOST_DEVICE constexpr int max_count() const { return count(largest_rank()); }
  /// The first rank that holds that many.
  SWITCHYARD_HOST_DEVICE constexpr int largest_rank() const {
    int largest = 0;
    for (int rank = 1; table != nullptr && rank < num_ranks; ++rank) {
      if (count(rank) > count(largest)) largest = rank;
    }
    return largest;
  }

 private:
  /// The last rank whose first expert is not above: ranks without experts share it with the next.
  SWITCHYARD_HOST_DEVICE constexpr int owner_in_table(int expert) const {
    int low = 0;
    int high = num_ranks;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (table[middle] <= expert ? low : high) = middle;
    }
    return low;
  }
};

}  // namespace switchyard
