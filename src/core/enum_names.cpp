// SPDX-License-Identifier: Apache-2.0

#include "core/enum_names.h"

#include "switchyard/activation.h"
#include "switchyard/all2all_backend.h"
#include "switchyard/expert_placement.h"
#include "switchyard/layout.h"
#include "switchyard/log.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/moe_config.h"
#include "switchyard/permute.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/quant.h"
#include "switchyard/quant_dtype.h"
#include "switchyard/router.h"
#include "switchyard/scale_layout.h"
#include "switchyard/weight_and_reduce.h"

#include "core/fail.h"
#include "core/text.h"

namespace switchyard {
namespace {

template <auto kLast>
constexpr bool ends_with = kEnumTable<decltype(kLast)>.names.size() ==
                           static_cast<std::size_t>(kLast) + 1;

static_assert(ends_with<ActivationFormat::kBatched> && ends_with<ActivationKind::kClampedSwiGlu> &&
              ends_with<All2AllBackend::kPplx> && ends_with<CompatPadding::kOwner> &&
              ends_with<GroupSelection::kTop2Sum> && ends_with<Layout::kAllGather> &&
              ends_with<LogLevel::kOff> && ends_with<MoEActivation::kRelu2NoMul> &&
              ends_with<Overflow::kDrop> && ends_with<PlacementStrategy::kRoundRobin> &&
              ends_with<PrepareKind::kLocal> && ends_with<QuantDType::kMxint8> &&
              ends_with<Reduce::kPerHost> && ends_with<ScaleFormat::kE4M3> &&
              ends_with<ScaleGroup::kBlock> && ends_with<ScaleLayout::kSwizzled> &&
              ends_with<ScaleRule::kTwoLevel> && ends_with<Scoring::kSparseMixer> &&
              ends_with<SharedExpertsOrder::kMkInternalOverlapped> &&
              ends_with<WeightAndReduceKind::kNaiveBatched>);

}  // namespace

void refuse_enum(const char* function, const char* what, std::size_t value,
                 std::span<const std::string_view> names) {
  fail(Errc::kInvalidArgument, "{}: {} is {}, must be {}", function, what, value, any_of(names));
}

const char* name_of(All2AllBackend backend) noexcept { return enum_name(backend); }
const char* name_of(Layout layout) noexcept { return enum_name(layout); }
const char* name_of(MoEActivation activation) noexcept { return enum_name(activation); }
const char* name_of(PlacementStrategy strategy) noexcept { return enum_name(strategy); }
const char* name_of(PrepareKind kind) noexcept { return enum_name(kind); }
const char* name_of(QuantDType dtype) noexcept { return enum_name(dtype); }
const char* name_of(Reduce reduce) noexcept { return enum_name(reduce); }
const char* name_of(ScaleLayout layout) noexcept { return enum_name(layout); }
const char* name_of(WeightAndReduceKind kind) noexcept { return enum_name(kind); }

std::optional<All2AllBackend> all2all_backend_from_name(std::string_view name) noexcept {
  return enum_from_name<All2AllBackend>(name);
}
std::optional<Layout> layout_from_name(std::string_view name) noexcept {
  return enum_from_name<Layout>(name);
}
std::optional<MoEActivation> moe_activation_from_name(std::string_view name) noexcept {
  return enum_from_name<MoEActivation>(name);
}
std::optional<PlacementStrategy> placement_strategy_from_name(std::string_view name) noexcept {
  return enum_from_name<PlacementStrategy>(name);
}
std::optional<PrepareKind> prepare_kind_from_name(std::string_view name) noexcept {
  return enum_from_name<PrepareKind>(name);
}
std::optional<QuantDType> quant_dtype_from_name(std::string_view name) noexcept {
  return enum_from_name<QuantDType>(name);
}
std::optional<Reduce> reduce_from_name(std::string_view name) noexcept {
  return enum_from_name<Reduce>(name);
}
std::optional<ScaleLayout> scale_layout_from_name(std::string_view name) noexcept {
  return enum_from_name<ScaleLayout>(name);
}

}  // namespace switchyard
