// SPDX-License-Identifier: Apache-2.0
//
// exchange_suite.h: what every engine must do, against the oracle, bit for bit. An engine's test
// file only chooses how ranks are started.
#pragma once

#include "conformance/carrier.h"
#include "conformance/exchange_case.h"

namespace switchyard::conformance {

/// Rounds of dispatch and combine with other tokens each: blocking, split into phases, with a kept
/// routing, with a reopened handle, and with one token in all. Throws a Difference. The
/// carrier was made with test.config(); absent: Exchange.
void check_exchange(const Group& group, const ExchangeCase& test);
void check_exchange(Carrier& carrier, const Group& group, const ExchangeCase& test);

/// Two handles alive at once, combined in the other order, one of them with the other's routing.
void check_two_in_flight(const Group& group, const ExchangeCase& test);
void check_two_in_flight(Carrier& carrier, const Group& group, const ExchangeCase& test);

}  // namespace switchyard::conformance
