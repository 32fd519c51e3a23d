// SPDX-License-Identifier: Apache-2.0
//
// live.h: the implementation of an object that can be moved from.
#pragma once

#include <memory>

#include "core/fail.h"

namespace switchyard {

/// Errors: kInvalidArgument when the object, a `type`, was moved from.
template <typename T>
T& live(const std::unique_ptr<T>& implementation, const char* type) {
  require(implementation != nullptr, Errc::kInvalidArgument,
          "{}: it was moved from; use the one that it was moved to", type);
  return *implementation;
}

}  // namespace switchyard
