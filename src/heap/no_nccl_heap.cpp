// SPDX-License-Identifier: Apache-2.0
//
// The functions of nccl_heap.h, nccl_all_to_all.h and rank_links.h in a build without NCCL's
// headers.

#include "core/fail.h"
#include "heap/nccl_all_to_all.h"
#include "heap/nccl_heap.h"
#include "heap/rank_links.h"

namespace switchyard {

int nccl_version() { return 0; }

std::string nccl_obstacle() {
  return "this build knows no NCCL; install its headers (nccl.h, 2.28 or newer) and build again";
}

std::string nccl_calls_obstacle() { return nccl_obstacle(); }

std::string nccl_links_obstacle() { return nccl_obstacle(); }

std::unique_ptr<Heap> make_nccl_heap(const HeapRequest& /*request*/) {
  fail(Errc::kNotAvailable, "device window: {}", nccl_obstacle());
}

std::unique_ptr<NcclAllToAll> make_nccl_all_to_all(Control& /*control*/, int /*device*/) {
  fail(Errc::kNotAvailable, "nccl: {}", nccl_obstacle());
}

std::shared_ptr<RankLinks> make_rank_links(Control& /*control*/, const HostMap& /*map*/) {
  fail(Errc::kNotAvailable, "exchange: ranks are on several hosts: {}", nccl_obstacle());
}

void keep_rank_links(Control& /*control*/, std::shared_ptr<RankLinks> /*links*/) noexcept {}

}  // namespace switchyard
