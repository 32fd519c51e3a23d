// SPDX-License-Identifier: Apache-2.0

#include "switchyard/dtype.h"

#include <array>

namespace switchyard {
namespace {

struct DTypeInfo {
  DType dtype;
  int bits;
  const char* name;
};

constexpr std::array<DTypeInfo, 14> kDTypes{{{DType::kF32, 32, "f32"},
                                             {DType::kF16, 16, "f16"},
                                             {DType::kBF16, 16, "bf16"},
                                             {DType::kE4M3, 8, "e4m3"},
                                             {DType::kE5M2, 8, "e5m2"},
                                             {DType::kE2M1, 4, "e2m1"},
                                             {DType::kE2M3, 6, "e2m3"},
                                             {DType::kE3M2, 6, "e3m2"},
                                             {DType::kE8M0, 8, "e8m0"},
                                             {DType::kI8, 8, "i8"},
                                             {DType::kU8, 8, "u8"},
                                             {DType::kU16, 16, "u16"},
                                             {DType::kI32, 32, "i32"},
                                             {DType::kI64, 64, "i64"}}};

}  // namespace

int bits_of(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].bits; }

const char* name_of(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const DTypeInfo& info : kDTypes) {
    if (name == info.name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace switchyard
