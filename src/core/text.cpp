// SPDX-License-Identifier: Apache-2.0

#include "core/text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace switchyard {
namespace {

constexpr std::size_t kMaxQuoted = 160;
constexpr int kMaxRanges = 16;
constexpr std::size_t kMaxCompared = 256;  // longer names are never suggested

// Levenshtein distance, one row at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string shorten(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string one_line(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  return text;
}

std::string quote(std::string_view name) {
  return "\"" + one_line(shorten(name, kMaxQuoted)) + "\"";
}

std::string nearest_names(std::string_view wanted, std::span<const std::string_view> names) {
  if (wanted.empty() || wanted.size() > kMaxCompared) return "";
  const std::size_t limit = std::max<std::size_t>(3, wanted.size() / 4);
  std::vector<std::pair<std::size_t, std::string_view>> near;
  for (const std::string_view name : names) {
    const std::size_t gap = std::max(name.size(), wanted.size()) -  //
                            std::min(name.size(), wanted.size());
    const bool is_begun = wanted.size() > 1 && name.starts_with(wanted);
    if (gap > limit && !is_begun) continue;
    const std::size_t distance = is_begun ? 1 : edit_distance(wanted, name);
    if (distance <= limit) near.emplace_back(distance, name);
  }
  std::sort(near.begin(), near.end());
  if (near.empty()) return "";
  std::string text = "; nearest:";
  for (std::size_t i = 0; i < std::min<std::size_t>(3, near.size()); ++i) {
    text += (i == 0 ? " " : ", ") + quote(near[i].second);
  }
  return text;
}

std::string any_of(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool is_last = i + 1 == names.size();
    text += fmt::format("{}{}", i == 0 ? "" : is_last ? " or " : ", ", names[i]);
  }
  return text;
}

std::string must_be(std::string_view given, std::span<const std::string_view> names) {
  return fmt::format("{}, must be {}{}", quote(given), any_of(names), nearest_names(given, names));
}

std::string format_ranges(std::span<const std::int32_t> numbers) {
  if (numbers.empty()) return "none";
  std::string text;
  int num_ranges = 0;
  for (std::size_t i = 0; i < numbers.size();) {
    if (num_ranges++ == kMaxRanges) {
      return text + fmt::format(" and {} more", numbers.size() - i);
    }
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text +=
        last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace switchyard
