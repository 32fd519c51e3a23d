// SPDX-License-Identifier: Apache-2.0

#include "heap/gpus_of_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "core/fail.h"
#include "heap/gather_or_fail.h"
#include "heap/heap.h"
#include "heap/heap_support.h"

namespace switchyard {
namespace {

// What NCCL takes for the name of this machine, if it was told one.
std::string nccl_host() {
  const char* name = std::getenv("NCCL_HOSTID");
  return name == nullptr ? "" : name;
}

}  // namespace

GpusOfRanks::GpusOfRanks(Control& control, int device)
    : uuids_(gather_or_fail(control, {Phase::kSetup, "GPUs"}, [&] { return gpu_uuid(device); })) {}

int GpusOfRanks::num_gpus() const {
  return static_cast<int>(std::set<std::string>(uuids_.begin(), uuids_.end()).size());
}

int GpusOfRanks::ranks_on_gpu_of(int rank) const {
  const std::string& own = uuids_[static_cast<std::size_t>(rank)];
  return static_cast<int>(std::count(uuids_.begin(), uuids_.end(), own));
}

void GpusOfRanks::require_distinct_machines(Control& control, const HostMap& map) const {
  const std::vector<std::string> names =
      control.all_gather_text({Phase::kSetup, "NCCL_HOSTID"}, nccl_host());
  for (std::size_t b = 1; b < uuids_.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      const bool is_one_host = map.host_of(static_cast<int>(a)) == map.host_of(static_cast<int>(b));
      require(is_one_host || uuids_[a] != uuids_[b] || names[a] != names[b], Errc::kInvalidArgument,
              "exchange: ranks {} and {} are of different hosts but share GPU {}, and NCCL_HOSTID "
              "is \"{}\" for both; set it to another text on each host",
              a, b, uuids_[b], names[b]);
    }
  }
}

}  // namespace switchyard
