// SPDX-License-Identifier: Apache-2.0
//
// random_batch.h: inputs for the oracle, taken from the conformance suite.
#pragma once

#include "conformance/random_batch.h"

namespace switchyard::test {

using conformance::BatchShape;
using conformance::bits_of_table;
using conformance::random_table;
using conformance::random_tokens;
using conformance::slice;
using conformance::split;
using conformance::split_point;

}  // namespace switchyard::test
