// SPDX-License-Identifier: Apache-2.0
//
// exchange_soak.h: one exchange that serves many pairs of dispatch and combine.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/exchange_case.h"
#include "conformance/exchange_probe.h"

namespace switchyard::conformance {

struct SoakTally {
  std::int64_t pairs = 0;
  std::string skipped{};  ///< why nothing was tried: the device does not support the case
};

/// At least `num_pairs` pairs on one exchange, in random order: rounds of other tokens, ids and
/// counts, blocking and in phases, again with the last routing, reopened, released without a
/// combine, and two at a time where the case has room for them. What arrives is compared with the
/// oracle every time; an output the first time, and after that with the output of the same round
/// that the oracle found right.
///
/// Collective. Throws a Difference, or the Error of a call that must not fail.
SoakTally soak_exchange(const Group& group, const ExchangeCase& test, Device device,
                        std::int64_t num_pairs, const Tamper& tamper = {});

}  // namespace switchyard::conformance
