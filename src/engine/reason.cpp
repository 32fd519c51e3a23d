// SPDX-License-Identifier: Apache-2.0

#include "engine/reason.h"

#include <cstddef>
#include <string_view>

namespace switchyard {
namespace {

constexpr std::string_view kDigits = "0123456789";

// Where the number that starts at `at` ends; `at` itself if there is none.
std::size_t end_of_number(const std::string& text, std::size_t at) {
  const std::size_t end = text.find_first_not_of(kDigits, at);
  return end == text.npos ? text.size() : end;
}

// Whether "(rank 1 of 4" starts at `at`.
bool is_place(const std::string& text, std::size_t at, std::string_view opening) {
  constexpr std::string_view kOf = " of ";
  const std::size_t rank = at + opening.size();
  const std::size_t after_rank = end_of_number(text, rank);
  if (after_rank == rank || text.compare(after_rank, kOf.size(), kOf) != 0) return false;
  const std::size_t size = after_rank + kOf.size();
  return end_of_number(text, size) > size;
}

}  // namespace

std::string reason_for_others(std::string message) {
  constexpr std::string_view kFunction = "group: ";
  constexpr std::string_view kOpening = " (rank ";
  if (message.starts_with(kFunction)) message.erase(0, kFunction.size());
  for (std::size_t at = message.find(kOpening); at != message.npos;) {
    const std::size_t end = message.find(')', at);
    if (end != message.npos && is_place(message, at, kOpening)) {
      message.erase(at, end + 1 - at);
    } else {
      ++at;
    }
    at = message.find(kOpening, at);
  }
  return message;
}

}  // namespace switchyard
