// SPDX-License-Identifier: Apache-2.0
//
// sized.h: structs that begin with struct_size, so that fields can be appended. What an older
// caller does not have reads as zero, its default; what a newer caller sets and this library does
// not know is refused.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "capi/call.h"

namespace switchyard::capi {

/// Larger than any struct will be: a size beyond it was never set.
inline constexpr std::size_t kMaxStructBytes = 4096;

template <typename T>
std::size_t checked_struct_size(const T* given, const char* name) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  check(size >= sizeof(size) && size <= kMaxStructBytes,
        "{}->struct_size is {}, must be sizeof the struct, {} in this version", name, size,
        sizeof(T));
  return size;
}

/// A copy of the caller's struct; all zero where it is NULL.
template <typename T>
T read_sized(const T* given, const char* name) {
  T value{};
  if (given == nullptr) return value;
  const std::size_t size = checked_struct_size(given, name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    check(bytes[i] == 0,
          "{} has {} bytes, of which this library knows {}, and byte {} is set; clear the newer "
          "fields, or load a library as new as the header",
          name, size, sizeof(T), i);
  }
  std::memcpy(&value, bytes, std::min(size, sizeof(T)));
  return value;
}

/// The same where NULL is an error.
template <typename T>
T read_required(const T* given, const char* name) {
  check(given != nullptr, "{} is NULL, must be a struct", name);
  return read_sized(given, name);
}

/// The caller's array.
template <typename T, typename Size>
std::span<const T> span_of(const T* data, Size size, const char* name) {
  check(size >= 0, "the size of {} is {}, must be at least 0", name, size);
  check(data != nullptr || size == 0, "{} is NULL, must be {} numbers", name, size);
  return {data, static_cast<std::size_t>(size)};
}

/// Fills as much of the caller's struct as it has room for; struct_size stays.
template <typename T>
void write_sized(T* to, const char* name, T value) {
  check(to != nullptr, "{} is NULL, must be where the result goes", name);
  const std::size_t size = checked_struct_size(to, name);
  value.struct_size = size;
  auto* bytes = reinterpret_cast<unsigned char*>(to);
  std::memcpy(bytes, &value, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(bytes + sizeof(T), 0, size - sizeof(T));
}

}  // namespace switchyard::capi
