// SPDX-License-Identifier: Apache-2.0
//
// gather.h: gathers measured values of all ranks. Call these between measurements only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/group.h"

namespace switchyard::measure {

/// Collective. Returns the elementwise maximum over ranks; every rank passes the same number of
/// values.
std::vector<double> max_over_ranks(const Group& group, const std::vector<double>& values);

/// Collective. Values of all ranks added up.
std::int64_t sum_of(const Group& group, std::int64_t value);

/// Collective. Returns the first non-empty text in rank order.
std::string first_text(const Group& group, const std::string& text);

}  // namespace switchyard::measure
