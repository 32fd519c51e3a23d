// SPDX-License-Identifier: Apache-2.0
//
// local_engine.h: engine "local": ranks are threads of one process, windows are ordinary memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace switchyard {

/// One engine for each rank; hand each to its thread. Errors: kInvalidArgument, kOutOfMemory.
std::vector<std::shared_ptr<Engine>> make_local_engines(int num_ranks, std::int64_t timeout_ms);

}  // namespace switchyard
