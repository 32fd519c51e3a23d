// SPDX-License-Identifier: Apache-2.0

#include "measure/gather.h"

#include <algorithm>
#include <cstring>

#include "core/fail.h"
#include "engine/control.h"

namespace switchyard::measure {
namespace {

// The store accepts arbitrary bytes.
template <typename T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> unpacked(const std::string& text) {
  std::vector<T> values(text.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), text.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace

std::vector<double> max_over_ranks(const Group& group, const std::vector<double>& values) {
  std::vector<double> most = values;
  for (const std::string& text :
       group.control().all_gather_text({Phase::kSetup, "maximum"}, packed(values))) {
    const std::vector<double> other = unpacked<double>(text);
    require(other.size() == most.size(), Errc::kInternal,
            "max_over_ranks: {} values, but another rank has {}", most.size(), other.size());
    for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], other[i]);
  }
  return most;
}

std::int64_t sum_of(const Group& group, std::int64_t value) {
  std::int64_t sum = 0;
  for (const std::string& text : group.control().all_gather_text(
           {Phase::kSetup, "sum"}, packed(std::vector<std::int64_t>{value}))) {
    sum += unpacked<std::int64_t>(text).at(0);
  }
  return sum;
}

std::string first_text(const Group& group, const std::string& text) {
  for (const std::string& other :
       group.control().all_gather_text({Phase::kSetup, "first text"}, text)) {
    if (!other.empty()) return other;
  }
  return {};
}

}  // namespace switchyard::measure
