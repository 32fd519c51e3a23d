// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <tuple>

#include "conformance/check_case.h"

namespace switchyard::conformance {

std::vector<CheckCase> all_cases() {
  Cases cases;
  add_quantize_cases(cases);
  add_batched_cases(cases);
  add_permute_cases(cases);
  add_reduce_cases(cases);
  add_config_cases(cases);
  add_placement_cases(cases);
  add_exchange_cases(cases);
  add_class_cases(cases);
  add_layer_cases(cases);
  // Processes start once for each number of ranks.
  std::stable_sort(cases.begin(), cases.end(), [](const CheckCase& a, const CheckCase& b) {
    return std::tie(a.engine, a.num_ranks) < std::tie(b.engine, b.num_ranks);
  });
  return cases;
}

}  // namespace switchyard::conformance
