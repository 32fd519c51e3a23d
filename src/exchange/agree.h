// SPDX-License-Identifier: Apache-2.0
//
// agree.h: ranks compare what must be equal, once, at set-up.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

class Control;

using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// Collective. Errors: kInvalidArgument on every rank when a rank differs from rank 0: names the
/// first such rank, the field and both values.
void require_agreement(Control& control, std::string_view what, const NamedValues& values);

}  // namespace switchyard
