// SPDX-License-Identifier: Apache-2.0
//
// help.h: how --help is laid out, and options whose value is one of several names.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/enum_names.h"

namespace switchyard::cli {

/// Lines of at most `width` characters. Text that starts at `column` goes on there; lines of `text`
/// that are indented stay as they are.
std::string wrapped(const std::string& text, std::size_t column, std::size_t width);

/// COLUMNS, else the width of the terminal, else 80; from 40 to 120.
std::size_t help_width();

/// Options beside their texts, which name choices, ranges and defaults, in lines of help_width().
std::shared_ptr<CLI::Formatter> help_formatter();

/// Accepts these names, which outlive it; the error for another lists those that are spelled like
/// it.
CLI::Validator one_of(std::vector<std::string_view> names);
/// Accepts the names of an enum.
template <NamedEnum T>
CLI::Validator one_of() {
  return one_of({kEnumTable<T>.names.begin(), kEnumTable<T>.names.end()});
}

}  // namespace switchyard::cli
