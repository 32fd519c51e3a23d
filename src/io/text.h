// SPDX-License-Identifier: Apache-2.0
//
// text.h: formats names from files for error messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

/// `name` in quotes, cut after 160 bytes, with control characters as '?': a hostile name stays one
/// short line.
std::string quote(std::string_view name);

/// "; nearest: "a", "b"" with up to three names spelled like `wanted`, or "" when none is close.
std::string nearest_names(std::string_view wanted, std::span<const std::string_view> names);

/// Ascending numbers as ranges: "1-26" or "0, 2, 4-7"; "none" when empty.
std::string format_ranges(std::span<const std::int32_t> numbers);

}  // namespace switchyard
