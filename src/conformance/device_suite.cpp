// SPDX-License-Identifier: Apache-2.0

#include "conformance/device_suite.h"

#include <array>

#include "switchyard/error.h"

#include "conformance/device_carrier.h"

namespace switchyard::conformance {
namespace {

// A part of a case that may be left out, so that the rest of it is still tried.
struct Part {
  const char* name;
  void (*leave_out)(ExchangeCase&);
};

constexpr std::array kParts{
    Part{"quantized results",
         [](ExchangeCase& test) {
           if (test.combine_scheme.is_quantized()) test.combine_scheme = schemes::kNone;
         }},
};

// What is so by contract: buffers have their largest size, and a new dispatch takes the place of a
// kept routing.
ExchangeCase for_gpus(ExchangeCase test) {
  test.worst_case_rows = true;
  test.keeps_routing = test.keeps_routing && test.is_long;
  test.forgets_routing = true;
  return test;
}

struct Attempt {
  std::unique_ptr<DeviceCarrier> carrier;
  std::string refusal;
};

Attempt attempt(const Group& group, const ExchangeCase& test) try {
  return {std::make_unique<DeviceCarrier>(group, test), {}};
} catch (const Error& error) {
  if (error.code() != Errc::kNotSupported) throw;
  return {nullptr, error.what()};
}

// Leaves out the part that is refused. False: none is.
bool leave_out_refused(const Group& group, ExchangeCase& test, Attempt& last,
                       std::vector<std::string>& left_out) {
  for (const Part& part : kParts) {
    ExchangeCase less = test;
    part.leave_out(less);
    if (less.describe() == test.describe() && less.config() == test.config()) continue;
    Attempt next = attempt(group, less);
    if (next.carrier == nullptr && next.refusal == last.refusal) continue;
    left_out.emplace_back(part.name);
    test = less;
    last = std::move(next);
    return true;
  }
  return false;
}

}  // namespace

Agreement check_on_gpus(const Group& group, const ExchangeCase& wanted, CarrierSuite suite) {
  Agreement agreement;
  ExchangeCase test = for_gpus(wanted);
  Attempt last = attempt(group, test);
  while (last.carrier == nullptr) {
    if (leave_out_refused(group, test, last, agreement.left_out)) continue;
    agreement.skipped = last.refusal;
    return agreement;
  }
  agreement.heap = last.carrier->heap();
  agreement.is_shared_gpu = last.carrier->is_shared_gpu();
  suite(*last.carrier, group, test);
  return agreement;
}

}  // namespace switchyard::conformance
