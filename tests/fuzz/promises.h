// SPDX-License-Identifier: Apache-2.0
//
// promises.h: what an entry holds the library to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "switchyard/error.h"

namespace switchyard::fuzz {

inline void check(bool promise) {
  if (!promise) std::abort();
}

/// Lets only these errors pass, each one short line; any other is a bug.
template <typename Call>
void only_errors(std::initializer_list<Errc> codes, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    check(std::find(codes.begin(), codes.end(), error.code()) != codes.end());
    check(text.size() < 4096 && text.find('\n') == text.npos);
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace switchyard::fuzz
