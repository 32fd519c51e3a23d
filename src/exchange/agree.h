// SPDX-License-Identifier: Apache-2.0
//
// agree.h: checks, once at set-up, that ranks agree on values that must be equal.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/control.h"

namespace switchyard {

using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// Collective. Errors: kInvalidArgument on every rank when any rank differs from rank 0; the
/// message begins with `what` and names the first such rank, the field and both values.
void require_agreement(Control& control, const Step& step, std::string_view what,
                       const NamedValues& values);

}  // namespace switchyard
