// SPDX-License-Identifier: Apache-2.0
//
// join.h: how processes become a group, of the engine that they ask for or that suits their hosts.
#pragma once

#include <memory>
#include <string>

#include "engine/registry.h"

namespace switchyard {

/// Collective. `name`: "shm", "mpi", or "auto": shm when all ranks share a host, else mpi. Errors:
/// those of the engine.
std::shared_ptr<Engine> join_processes(const std::string& name, const JoinRequest& request);

}  // namespace switchyard
