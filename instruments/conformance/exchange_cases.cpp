// SPDX-License-Identifier: Apache-2.0
//
// The exchange: five layouts, wire formats, contracts and options, every two of them together, over
// both engines, between CPUs and between GPUs; two dispatches in flight; and rows beyond what
// caches hold.

#include <fmt/format.h>

#include "conformance/arena.h"
#include "conformance/check_case.h"
#include "conformance/exchange_suite.h"

namespace switchyard::conformance {
namespace {

// Another seed keeps what a case does: it depends on the case's own number modulo small ones.
constexpr std::uint64_t kSeedStep = 1'000'000 * 60;

void add(Cases& cases, const Place& place, const ExchangeCase& test, std::string name,
         ExchangeSuite suite, bool is_quick) {
  CheckCase result;
  result.group = "exchange";
  result.name = fmt::format("exchange/{}/P{}/{}/{}", place.name(), test.num_ranks,
                            name_of(test.layout), std::move(name));
  result.row = name_of(test.layout);
  result.column = fmt::format("{} {}", place.name(), name_of(test.reduce));
  result.device = place.device;
  result.engine = place.engine;
  result.num_ranks = test.num_ranks;
  result.is_quick = is_quick;
  result.body = [test, suite, place](const Group& group, std::uint64_t seed) {
    ExchangeCase seeded = test;
    seeded.seed += seed * kSeedStep;
    return suite(group, seeded, device_of(place.device, group), {});
  };
  cases.push_back(std::move(result));
}

std::string format_name(const QuantScheme& scheme) {
  return scheme.is_quantized() ? switchyard::name_of(scheme) : switchyard::name_of(scheme.dtype);
}

std::string name_of_case(const ExchangeCase& test) {
  return fmt::format("{}/{}/{}/T{}/{}", format_name(test.scheme), name_of(test.reduce),
                     format_name(test.combine_scheme), test.num_tokens, test.seed);
}

void add_large(Cases& cases, const Place& place) {
  for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
    ExchangeCase test;
    test.shape = {.num_experts = 4, .num_topk = 2, .hidden = 4096};
    test.num_tokens = 3000;  // 49 MB of rows in place
    test.reduce = reduce;
    test.is_long = false;
    add(cases, place, test, fmt::format("beyond_caches/{}", name_of(reduce)), check_exchange,
        false);
  }
}

void add_all(Cases& cases, const Place& place) {
  const bool is_local = place.engine == std::string_view("local");
  for (const ExchangeCase& test : exchange_cases({1, 2, 3, 7})) {
    if (!is_local && test.num_ranks == 1) continue;
    add(cases, place, test, name_of_case(test), check_exchange, is_local || test.num_ranks < 4);
  }
  for (const int num_ranks : {2, 3}) {
    for (const ExchangeCase& test : two_in_flight_cases(num_ranks)) {
      add(cases, place, test, fmt::format("two_in_flight/{}", name_of(test.reduce)),
          check_two_in_flight, true);
    }
  }
  add_large(cases, place);
}

// Ranks that do not all share windows: the exchange has other backends for them.
void add_apart(Cases& cases, const Place& place, const std::vector<int>& sizes) {
  for (const ExchangeCase& test : exchange_cases(sizes)) {
    add(cases, place, test, name_of_case(test), check_exchange, true);
  }
  for (const ExchangeCase& test : two_in_flight_cases(sizes.front())) {
    add(cases, place, test, fmt::format("two_in_flight/{}", name_of(test.reduce)),
        check_two_in_flight, true);
  }
}

}  // namespace

std::vector<CheckCase> launched_cases(const char* engine, int num_ranks) {
  Cases cases;
  add_apart(cases, {"cpu", engine}, {num_ranks});
  return cases;
}

void add_exchange_cases(Cases& cases) {
  for (const Place& place : kPlaces) add_all(cases, place);
  for (const Place& place : kApartPlaces) add_apart(cases, place, {3, 7});
}

}  // namespace switchyard::conformance
