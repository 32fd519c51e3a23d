// SPDX-License-Identifier: Apache-2.0
//
// text.h: names out of files, made fit for error messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

/// In quotes, at most 160 bytes of it, control characters as '?': hostile names stay one short
/// line.
std::string quote(std::string_view name);

/// "; nearest: "a", "b"" with the up to three names that are spelt most alike, or "" when none is.
std::string nearest_names(std::string_view wanted, std::span<const std::string_view> names);

/// Ascending numbers as ranges: "1-26" or "0, 2, 4-7"; "none" when empty.
std::string format_ranges(std::span<const std::int32_t> numbers);

}  // namespace switchyard
