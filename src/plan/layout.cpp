// SPDX-License-Identifier: Apache-2.0

#include "switchyard/layout.h"

#include <array>

namespace switchyard {
namespace {

constexpr std::array<const char*, 5> kLayoutNames{"batched", "expanded", "compact", "by_rank",
                                                  "all_gather"};
constexpr std::array<const char*, 3> kReduceNames{"per_expert", "per_rank", "per_host"};

template <typename Enum, std::size_t N>
std::optional<Enum> find_name(const std::array<const char*, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

const char* name_of(Layout layout) noexcept {
  const auto index = static_cast<std::size_t>(layout);
  return index < kLayoutNames.size() ? kLayoutNames[index] : "unknown";
}
const char* name_of(Reduce reduce) noexcept {
  const auto index = static_cast<std::size_t>(reduce);
  return index < kReduceNames.size() ? kReduceNames[index] : "unknown";
}
std::optional<Layout> layout_from_name(std::string_view name) noexcept {
  return find_name<Layout>(kLayoutNames, name);
}
std::optional<Reduce> reduce_from_name(std::string_view name) noexcept {
  return find_name<Reduce>(kReduceNames, name);
}

}  // namespace switchyard
