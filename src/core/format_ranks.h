// SPDX-License-Identifier: Apache-2.0
//
// format_ranks.h: ranks in messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/format.h"
#include "core/text.h"

namespace switchyard {

/// As format_ranges: "rank 3", "ranks 0, 2-4".
inline std::string format_ranks(std::span<const std::int32_t> ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", format_ranges(ranks));
}

}  // namespace switchyard
