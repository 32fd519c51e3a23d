// SPDX-License-Identifier: Apache-2.0
//
// gpus_of_ranks.h: which ranks of a group use the same GPU, where those of one machine may say that
// they are of several hosts.
#pragma once

#include <string>
#include <vector>

#include "engine/control.h"
#include "plan/host_map.h"

namespace switchyard {

class GpusOfRanks {
 public:
  /// Collective; `device` is this rank's. Errors: kNotAvailable, kSystem, kTimeout, kPeerLost.
  GpusOfRanks(Control& control, int device);

  int num_gpus() const;
  /// That use the GPU of `rank`, itself included.
  int ranks_on_gpu_of(int rank) const;
  /// Whether any GPU is used by several ranks.
  bool has_shared_gpus() const { return num_gpus() < static_cast<int>(uuids_.size()); }

  /// Collective. NCCL refuses two ranks of one GPU that it takes for ranks of one machine. Errors:
  /// kInvalidArgument: it would take two of different hosts for that.
  void require_distinct_machines(Control& control, const HostMap& map) const;

 private:
  std::vector<std::string> uuids_;  ///< by rank
};

}  // namespace switchyard
