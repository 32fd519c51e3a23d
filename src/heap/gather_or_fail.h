// SPDX-License-Identifier: Apache-2.0
//
// gather_or_fail.h: a step of set-up that may fail on some ranks, and then fails on all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/control.h"

namespace switchyard {

/// Collective: runs `action` on every rank and returns the results, by rank. If it fails on some
/// ranks, every rank throws the error of the first of them, which it names. Errors of the group
/// itself (kTimeout, kPeerLost, kAborted) pass unchanged.
std::vector<std::string> gather_or_fail(Control& control, const Step& step,
                                        const std::function<std::string()>& action);

}  // namespace switchyard
