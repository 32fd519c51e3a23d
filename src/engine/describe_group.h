// SPDX-License-Identifier: Apache-2.0
//
// describe_group.h: what a new group is, for the log.
#pragma once

#include <string>

#include "engine/engine.h"

namespace switchyard {

/// On rank 0, at level info: one line with engine, ranks, hosts, timeout and the cores of rank 0.
/// `from`: where the ranks come from.
void log_group(Engine& engine, const std::string& from);

}  // namespace switchyard
