// SPDX-License-Identifier: Apache-2.0
//
// hex.h: handles of CUDA and NCCL, arrays of bytes, as text that ranks pass to each other.
#pragma once

#include <cstddef>
#include <string>

#include "core/fail.h"

namespace switchyard {

template <std::size_t kBytes>
std::string to_hex(const char (&bytes)[kBytes]) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// `what`: "an IPC handle of". Errors: kSystem.
template <std::size_t kBytes>
void from_hex(const char* what, const std::string& text, char (&bytes)[kBytes]) {
  require(text.size() == 2 * kBytes, Errc::kSystem, "device window: {} {} digits, must be {}", what,
          text.size(), 2 * kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) {
    bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
}

}  // namespace switchyard
