// SPDX-License-Identifier: Apache-2.0
//
// format.h: formats our types in messages. A view is described only if the message is needed.
#pragma once

#include <fmt/format.h>

#include "switchyard/tensor.h"

template <>
struct fmt::formatter<switchyard::TensorView> : fmt::formatter<std::string> {
  template <typename Context>
  auto format(const switchyard::TensorView& view, Context& context) const {
    return fmt::formatter<std::string>::format(view.describe(), context);
  }
};
