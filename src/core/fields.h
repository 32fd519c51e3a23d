// SPDX-License-Identifier: Apache-2.0
//
// fields.h: the fields of a struct of options, each listed once: its name, its member and what it
// means. Agreement between ranks, the Python classes and the checks of QuantConfig's builders walk
// these lists; C copies field by field. exchange/exchange_fields.h and moe/config have them.
#pragma once

#include <tuple>

namespace switchyard {

template <typename T, typename M>
struct OptionField {
  const char* name;  ///< as the member; the same in Python and in messages
  M T::*member;
  const char* help;
  bool is_agreed;  ///< every rank must pass the same value
};

/// A field that each rank may choose for itself.
template <typename T, typename M>
consteval OptionField<T, M> field(const char* name, M T::*member, const char* help) {
  return {name, member, help, false};
}

/// One that must be the same on every rank.
template <typename T, typename M>
consteval OptionField<T, M> agreed(const char* name, M T::*member, const char* help) {
  return {name, member, help, true};
}

/// The tuple of T's fields.
template <typename T>
inline constexpr int kFields = 0;

/// Calls visit(field) for each.
template <typename T, typename Visit>
constexpr void for_each_field(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, kFields<T>);
}

}  // namespace switchyard
