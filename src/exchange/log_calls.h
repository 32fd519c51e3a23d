// SPDX-License-Identifier: Apache-2.0
//
// log_calls.h: what the log says of an exchange at level info, and of its calls at level debug.
#pragma once

#include <string_view>

#include "switchyard/group.h"

#include "exchange/backend.h"

namespace switchyard {

/// One line, on rank 0.
void log_exchange(const Group& group, const ExchangeBackend& backend);

void log_dispatch(const ExchangeConfig& config, const DispatchCall& call);
void log_combine(const ExchangeConfig& config, const CombineCall& call);
Dispatched log_received(Dispatched received);
/// Why an exchange ends without its peers, which is no error.
void log_end(std::string_view why);
/// A kernel that moves the rows of a call: which way they go, and its grid.
void log_kernel(std::string_view call, std::string_view path, int num_ctas);

}  // namespace switchyard
