// SPDX-License-Identifier: Apache-2.0
//
// device_suite.h: the suites of the exchange over GPUs. Whether a case is supported is asked of
// Exchange itself: what its constructor refuses is left out, or the case is skipped.
#pragma once

#include "conformance/carrier.h"
#include "conformance/compare.h"
#include "conformance/exchange_case.h"

namespace switchyard::conformance {

using CarrierSuite = void (*)(Carrier&, const Group&, const ExchangeCase&);

/// Collective. The case with everything that GPUs carry; what they do not carry is named in the
/// result. Throws a Difference.
Agreement check_on_gpus(const Group& group, const ExchangeCase& test, CarrierSuite suite);

}  // namespace switchyard::conformance
