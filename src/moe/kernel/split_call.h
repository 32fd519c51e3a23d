// SPDX-License-Identifier: Apache-2.0
//
// split_call.h: a call in two parts whose second part runs once, in a hook or, without one, in the
// receiver.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "switchyard/prepare_finalize.h"

#include "core/fail.h"

namespace switchyard {

/// `receive` runs once: in the hook, or in the receiver when the hook was not called.
template <typename Result>
Pending<Result> split_call(std::function<void()> receive, std::function<Result()> result) {
  enum class Receipt { kOpen, kBegun, kDone };
  const auto receipt = std::make_shared<Receipt>(Receipt::kOpen);
  Pending<Result> pending;
  pending.hook = [receive = std::move(receive), receipt] {
    require(*receipt == Receipt::kOpen, Errc::kInvalidArgument,
            "hook: was called already, or its receiver was; call it once");
    *receipt = Receipt::kBegun;
    receive();
    *receipt = Receipt::kDone;
  };
  pending.receiver = [hook = pending.hook, receipt, result = std::move(result)] {
    if (*receipt == Receipt::kOpen) hook();
    require(*receipt == Receipt::kDone, Errc::kInvalidArgument,
            "receiver: its hook ended with an error, there is nothing to give");
    return result();
  };
  return pending;
}

}  // namespace switchyard
