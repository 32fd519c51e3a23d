// SPDX-License-Identifier: Apache-2.0
//
// local_engine.h: engine "local": ranks are threads of one process, windows are ordinary memory.
// Engine "local-messages", for tests: the same ranks without windows, so that they must exchange
// messages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "switchyard/group.h"

#include "engine/engine.h"

namespace switchyard {

inline constexpr const char* kLocalEngine = "local";
inline constexpr const char* kLocalMessagesEngine = "local-messages";

/// One engine for each rank; hand each to its thread. `name` is one of the two above. `hosts`, by
/// rank, for tests: ranks of one number share windows, those of several exchange messages; empty:
/// all share. Errors: kInvalidArgument, kOutOfMemory.
std::vector<std::shared_ptr<Engine>> make_local_engines(int num_ranks, std::int64_t timeout_ms,
                                                        const char* name = kLocalEngine,
                                                        const std::vector<int>& hosts = {});

/// Runs `body` on each engine, a thread each, and rethrows the first failure that is no echo of
/// another rank's.
void run_engines(std::vector<std::shared_ptr<Engine>> engines,
                 const std::function<void(const Group&)>& body);

}  // namespace switchyard
