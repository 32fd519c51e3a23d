// SPDX-License-Identifier: Apache-2.0
//
// gather.h: measured values of all ranks in one place. For times between measurements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/group.h"

namespace switchyard::measure {

/// Collective. The largest of the ranks' values, place by place; every rank passes as many.
std::vector<double> slowest_of(const Group& group, const std::vector<double>& values);

/// Collective. Values of all ranks added up.
std::int64_t sum_of(const Group& group, std::int64_t value);

/// Collective. The first text that is not empty, by rank.
std::string first_text(const Group& group, const std::string& text);

}  // namespace switchyard::measure
