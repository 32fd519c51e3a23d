// SPDX-License-Identifier: Apache-2.0
//
// registry.h: the engines by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "transport/env.h"

namespace switchyard {

/// What a process knows when it joins a group.
struct JoinRequest {
  RankInfo ranks;
  std::int64_t timeout_ms = 0;
  std::string store;    ///< address; empty: from the job's id
  std::string secret;   ///< may be empty with a Unix address
  int control_fd = -1;  ///< the control block of our launcher; -1: there is none
  /// Where ranks meet in place of an address; `store` is then its name, or empty.
  std::shared_ptr<Store> meeting{};
  /// Fortran handle of a communicator of MPI, over which the ranks meet.
  std::optional<int> communicator{};
  bool claims_ranks = false;  ///< numbers are not of our launcher: two may have the same
};

struct EngineInfo {
  const char* name;
  const char* description;
  std::shared_ptr<Engine> (*join)(const JoinRequest& request);
};

std::span<const EngineInfo> all_engines();
/// "auto" and theirs.
std::vector<std::string_view> engine_names();

/// What join_engine says before it meets anybody. Errors: kInvalidArgument.
void require_engine(const std::string& name, const JoinRequest& request);

/// Collective. `name` may be "auto": local for one rank, shm for ranks of one host, else mpi.
/// Errors: kInvalidArgument for an unknown name, and those of the engine.
std::shared_ptr<Engine> join_engine(const std::string& name, const JoinRequest& request);

}  // namespace switchyard
