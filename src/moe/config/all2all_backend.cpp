// SPDX-License-Identifier: Apache-2.0

#include "switchyard/all2all_backend.h"

#include <array>

#include "core/fail.h"

namespace switchyard {
namespace {

struct BackendRow {
  const char* name;
  All2AllProperties properties;
};

constexpr auto kStandard = ActivationFormat::kStandard;
constexpr auto kBatched = ActivationFormat::kBatched;

// Indexed by All2AllBackend.
constexpr std::array<BackendRow, 12> kBackends{
    {{"allgather_reducescatter", {kStandard, false, {}, false}},
     {"naive", {kStandard, false, {}, false}},
     {"deepep_high_throughput", {kStandard, true, DType::kI64, true}},
     {"deepep_low_latency", {kBatched, true, DType::kI64, true}},
     {"deepep_v2", {kStandard, true, DType::kI64, true}},
     {"flashinfer_nvlink_two_sided", {kStandard, false, {}, true}},
     {"flashinfer_all2allv", {kStandard, false, {}, true}},
     {"flashinfer_nvlink_one_sided", {kStandard, false, DType::kI32, true}},
     {"mori_high_throughput", {kStandard, false, DType::kI32, true}},
     {"mori_low_latency", {kStandard, false, DType::kI32, true}},
     {"nixl_ep", {kBatched, true, {}, true}},
     {"pplx", {kBatched, true, DType::kI32, true}}}};

}  // namespace

const char* name_of(All2AllBackend backend) noexcept {
  const auto index = static_cast<std::size_t>(backend);
  return index < kBackends.size() ? kBackends[index].name : "unknown";
}

std::optional<All2AllBackend> all2all_backend_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kBackends.size(); ++i) {
    if (name == kBackends[i].name) return static_cast<All2AllBackend>(i);
  }
  return std::nullopt;
}

All2AllProperties properties_of(All2AllBackend backend) {
  const auto index = static_cast<std::size_t>(backend);
  require(index < kBackends.size(), Errc::kInvalidArgument,
          "properties_of: backend is {}, want from 0 to {}", index, kBackends.size() - 1);
  return kBackends[index].properties;
}

}  // namespace switchyard
