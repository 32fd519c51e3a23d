// SPDX-License-Identifier: Apache-2.0
//
// agree.h: checks, once at set-up, that ranks agree on values that must be equal.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

class Control;

using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// Collective. Errors: kInvalidArgument on every rank when any rank differs from rank 0; the
/// message names the first such rank, the field and both values.
void require_agreement(Control& control, std::string_view what, const NamedValues& values);

}  // namespace switchyard
