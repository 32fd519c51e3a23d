// SPDX-License-Identifier: Apache-2.0
//
// safetensors_image.h: builds the bytes of a safetensors file from any header text, valid or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace switchyard::test {

/// `stated` is the header length that the file claims; the default is the true length.
inline std::vector<std::byte> safetensors_image(std::string_view header, std::size_t data_bytes,
                                                std::uint64_t stated = UINT64_MAX) {
  if (stated == UINT64_MAX) stated = header.size();
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(stated >> (8 * i));
  if (!header.empty()) std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i) {
    bytes[8 + header.size() + i] = static_cast<std::byte>(i);
  }
  return bytes;
}

}  // namespace switchyard::test
