// SPDX-License-Identifier: Apache-2.0
//
// log_calls.h: what the log says of an exchange at level info, and of its calls at level debug.
#pragma once

#include "switchyard/group.h"

#include "exchange/backend.h"

namespace switchyard {

/// One line, on rank 0.
void log_exchange(const Group& group, const ExchangeBackend& backend);

void log_dispatch(const ExchangeConfig& config, const DispatchCall& call);
void log_combine(const ExchangeConfig& config, const CombineCall& call);
Dispatched log_received(Dispatched received);

}  // namespace switchyard
