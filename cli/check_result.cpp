// SPDX-License-Identifier: Apache-2.0

#include "check_result.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/clock.h"

namespace switchyard::cli {

CheckResult run_part(const conformance::CheckCase& test, const Group& group, std::uint64_t seed) {
  CheckResult result;
  const std::int64_t start = now_ns();
  result.agreement = test.body(group, seed);
  result.ns = now_ns() - start;
  result.is_done = true;
  return result;
}

void merge(CheckResult& result, const CheckResult& part) {
  result.is_done = true;
  result.ns = std::max(result.ns, part.ns);
  result.agreement.is_exact = result.agreement.is_exact && part.agreement.is_exact;
  result.agreement.max_error = std::max(result.agreement.max_error, part.agreement.max_error);
  result.agreement.bound = std::max(result.agreement.bound, part.agreement.bound);
  // These are the same on every rank.
  result.agreement.skipped = part.agreement.skipped;
  result.agreement.left_out = part.agreement.left_out;
  result.agreement.heap = part.agreement.heap;
  result.agreement.is_shared_gpu = result.agreement.is_shared_gpu || part.agreement.is_shared_gpu;
}

nlohmann::json json_of(const CheckResult& result) {
  nlohmann::json json;
  json["failure"] = result.failure;
  json["exact"] = result.agreement.is_exact;
  json["error"] = result.agreement.max_error;
  json["bound"] = result.agreement.bound;
  json["skipped"] = result.agreement.skipped;
  json["left_out"] = result.agreement.left_out;
  json["heap"] = result.agreement.heap;
  json["shared_gpu"] = result.agreement.is_shared_gpu;
  json["ns"] = result.ns;
  return json;
}

CheckResult result_of(const nlohmann::json& json) {
  CheckResult result;
  result.failure = json["failure"];
  result.agreement = {json["exact"],    json["error"], json["bound"],     json["skipped"],
                      json["left_out"], json["heap"],  json["shared_gpu"]};
  result.ns = json["ns"];
  return result;
}

}  // namespace switchyard::cli
