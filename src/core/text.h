// SPDX-License-Identifier: Apache-2.0
//
// text.h: formats text from outside, such as names in files, for error messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

/// At most `max_bytes` of `text`, then "..." if there is more. Never cuts a UTF-8 character.
std::string shorten(std::string_view text, std::size_t max_bytes);

/// `text` on one line: control characters become '?'.
std::string one_line(std::string text);

/// `name` in quotes, cut after 160 bytes, with control characters as '?': a hostile name stays one
/// short line.
std::string quote(std::string_view name);

/// "; nearest: "a", "b"" with up to three names spelled like `wanted`, or "" when none is close.
std::string nearest_names(std::string_view wanted, std::span<const std::string_view> names);

/// "none, max or top2_sum".
std::string any_of(std::span<const std::string_view> names);

/// "\"maxx\", must be none, max or top2_sum; nearest: \"max\"".
std::string must_be(std::string_view given, std::span<const std::string_view> names);

/// Ascending numbers as ranges: "1-26" or "0, 2, 4-7"; "none" when empty. After 16 ranges: how many
/// numbers are left out.
std::string format_ranges(std::span<const std::int32_t> numbers);

}  // namespace switchyard
