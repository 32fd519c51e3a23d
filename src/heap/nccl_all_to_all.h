// SPDX-License-Identifier: Apache-2.0
//
// nccl_all_to_all.h: how a program without this library would move rows: grouped ncclSend and
// ncclRecv with sizes that the host knows. A baseline for measurements.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <vector>

#include "engine/control.h"

namespace switchyard {

/// Bytes that a rank exchanges in one call, per peer. The rank itself counts as a peer.
struct AllToAllBytes {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

class NcclAllToAll {
 public:
  NcclAllToAll() = default;
  NcclAllToAll(const NcclAllToAll&) = delete;
  NcclAllToAll& operator=(const NcclAllToAll&) = delete;
  virtual ~NcclAllToAll() = default;

  /// Collective. `from` and `to` consist of one block per peer, in rank order. Errors: kSystem.
  virtual void enqueue(const AllToAllBytes& bytes, const std::byte* from, std::byte* to,
                       cudaStream_t stream) = 0;
};

/// Collective. Errors: kNotAvailable (see nccl_calls_obstacle), kSystem (for example several ranks
/// on one GPU), kTimeout, kPeerLost.
std::unique_ptr<NcclAllToAll> make_nccl_all_to_all(Control& control, int device);

}  // namespace switchyard
