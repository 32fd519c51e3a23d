// SPDX-License-Identifier: Apache-2.0
//
// nccl_all_to_all.h: what a program without this library would move rows with: grouped ncclSend and
// ncclRecv whose sizes the host knows. A baseline for measurements.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <vector>

#include "engine/control.h"

namespace switchyard {

/// Bytes that a rank exchanges in one call, by peer. Own bytes count as others.
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

  /// Collective. Blocks of `from` and `to` lie one after another, by peer. Errors: kSystem.
  virtual void enqueue(const AllToAllBytes& bytes, const std::byte* from, std::byte* to,
                       cudaStream_t stream) = 0;
};

/// Collective. Errors: kNotAvailable (see nccl_calls_obstacle), kSystem (several ranks on a GPU,
/// among others), kTimeout, kPeerLost.
std::unique_ptr<NcclAllToAll> make_nccl_all_to_all(Control& control, int device);

}  // namespace switchyard
