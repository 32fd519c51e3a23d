// SPDX-License-Identifier: Apache-2.0

#include "switchyard/all2all_backend.h"

#include <array>

#include "core/enum_names.h"
#include "core/fail.h"

namespace switchyard {
namespace {

constexpr auto kStandard = ActivationFormat::kStandard;
constexpr auto kBatched = ActivationFormat::kBatched;

// Indexed by All2AllBackend.
constexpr std::array<All2AllProperties, kEnumTable<All2AllBackend>.names.size()> kBackends{
    {{kStandard, false, {}, false},
     {kStandard, false, {}, false},
     {kStandard, true, DType::kI64, true},
     {kBatched, true, DType::kI64, true},
     {kStandard, true, DType::kI64, true},
     {kStandard, false, {}, true},
     {kStandard, false, {}, true},
     {kStandard, false, DType::kI32, true},
     {kStandard, false, DType::kI32, true},
     {kStandard, false, DType::kI32, true},
     {kBatched, true, {}, true},
     {kBatched, true, DType::kI32, true}}};

}  // namespace

All2AllProperties properties_of(All2AllBackend backend) {
  require_enum("properties_of", backend);
  return kBackends[static_cast<std::size_t>(backend)];
}

}  // namespace switchyard
