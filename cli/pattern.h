// SPDX-License-Identifier: Apache-2.0
//
// pattern.h: selects names by a pattern in which * matches any text.
#pragma once

#include <string_view>

namespace switchyard::cli {

bool matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace switchyard::cli
