// SPDX-License-Identifier: Apache-2.0
//
// machine.h: what this machine is, for reports.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::measure {

/// "AMD EPYC 9575F 64-Core Processor, 2 cores"
std::string processor();

/// "Linux 6.1.0"
std::string operating_system();

/// MemAvailable of /proc/meminfo; 0: unknown.
std::int64_t available_bytes();

}  // namespace switchyard::measure
