// SPDX-License-Identifier: Apache-2.0
//
// group_options.h: what GroupOptions leave to the settings.
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/group.h"

namespace switchyard {

/// Errors: kInvalidArgument.
std::int64_t timeout_of(const GroupOptions& options);
std::string engine_of(const GroupOptions& options);
std::string secret_of(const GroupOptions& options);

}  // namespace switchyard
