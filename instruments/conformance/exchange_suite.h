// SPDX-License-Identifier: Apache-2.0
//
// exchange_suite.h: what every engine and every device must do, against the oracle, bit for bit. An
// engine's test file only chooses how ranks are started.
#pragma once

#include "conformance/compare.h"
#include "conformance/exchange_case.h"
#include "conformance/exchange_probe.h"

namespace switchyard::conformance {

/// Rounds of dispatch and combine with other tokens each: blocking, split into phases, with a kept
/// routing, with a reopened handle, and with one token in all. Collective; throws a Difference.
///
/// On GPUs, what the exchange refuses as not supported is left out of the case, or the case is
/// skipped: the result says so. On CPUs nothing may be refused.
Agreement check_exchange(const Group& group, const ExchangeCase& test,
                         Device device = Device::cpu(), const Tamper& tamper = {});

/// Two handles alive at once, combined in the other order, one of them with the other's routing.
Agreement check_two_in_flight(const Group& group, const ExchangeCase& test,
                              Device device = Device::cpu(), const Tamper& tamper = {});

using ExchangeSuite = Agreement (*)(const Group&, const ExchangeCase&, Device, const Tamper&);

}  // namespace switchyard::conformance
