// SPDX-License-Identifier: Apache-2.0

#include "conformance/exchange_suite.h"

#include <array>
#include <memory>
#include <optional>

#include "switchyard/error.h"

#include "conformance/exchange_outputs.h"
#include "conformance/exchange_round.h"

namespace switchyard::conformance {
namespace {

void combine(ExchangeProbe& exchange, const ExchangeCase& test, const Round& round,
             const DispatchHandle& handle) {
  const Outputs outputs(test, round);
  const Tensor rows = round.results();
  const CombineOptions options = outputs.options(round);
  const Tensor weights = test.returns_weights ? round.row_weights() : Tensor();
  exchange.combine(handle, rows, outputs.output(), options, weights);
  outputs.check(round);
}

void check_rounds(ExchangeProbe& exchange, const Group& group, const ExchangeCase& test) {
  const auto finish = [&](const Round& round, const Received& got) {
    round.check_received(got);
    combine(exchange, test, round, got.handle);
    return got.handle;
  };
  const Round first(group, test, 0);
  finish(first, exchange.dispatch(first.tokens(), first.ids(false), first.weights(),
                                  first.dispatch_options()));
  if (!test.is_long) return;
  const Round second(group, test, 1);
  const DispatchHandle kept =
      finish(second,
             exchange.dispatch_receive(exchange.dispatch_send(
                 second.tokens(), second.ids(false), second.weights(), second.dispatch_options())));
  if (test.keeps_routing) {
    const Round again(second, 2);
    finish(again, exchange.dispatch_again(kept, again.tokens(), again.weights(),
                                          again.dispatch_options()));
    combine(exchange, test, again.reopened(), exchange.reopen(kept));
  }
  const Round lone(group, test, 3);
  finish(lone,
         exchange.dispatch(lone.tokens(), lone.ids(true), lone.weights(), lone.dispatch_options()));
  if (!test.keeps_routing || test.forgets_routing) return;
  // Another routing has been there since.
  const Round late(second, 4);
  finish(late,
         exchange.dispatch_again(kept, late.tokens(), late.weights(), late.dispatch_options()));
}

void check_both(ExchangeProbe& exchange, const Group& group, const ExchangeCase& test) {
  std::optional<Round> kept;
  DispatchHandle kept_handle;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const bool is_again = kept && test.keeps_routing;
    const Round first(group, test, repeat);
    const Round second = is_again ? Round(*kept, 7 + repeat) : Round(group, test, 6 + repeat);
    const DispatchHandle a = exchange.dispatch_send(first.tokens(), first.ids(false),
                                                    first.weights(), first.dispatch_options());
    const DispatchHandle b =
        is_again ? exchange.dispatch_again_send(kept_handle, second.tokens(), second.weights(),
                                                second.dispatch_options())
                 : exchange.dispatch_send(second.tokens(), second.ids(true), second.weights(),
                                          second.dispatch_options());
    const Received got_b = exchange.dispatch_receive(b);
    const Received got_a = exchange.dispatch_receive(a);
    first.check_received(got_a);
    second.check_received(got_b);
    const Tensor rows_a = first.results();
    const Tensor rows_b = second.results();
    const Outputs out_a(test, first);
    const Outputs out_b(test, second);
    const auto weights = [&](const Round& round) {
      return test.returns_weights ? round.row_weights() : Tensor();
    };
    exchange.combine_send(b, rows_b, weights(second));
    exchange.combine_send(a, rows_a, weights(first));
    exchange.combine_receive(a, out_a.output(), out_a.options(first));
    exchange.combine_receive(b, out_b.output(), out_b.options(second));
    out_a.check(first);
    out_b.check(second);
    kept.emplace(second);
    kept_handle = b;
  }
}

// A part of a case that may be left out, so that the rest of it is still tried.
struct Part {
  const char* name;
  void (*leave_out)(ExchangeCase&);
};

constexpr std::array kParts{
    Part{"sums per host",
         [](ExchangeCase& test) {
           if (test.reduce == Reduce::kPerHost) test.reduce = Reduce::kPerRank;
         }},
    Part{"experts on some ranks only", [](ExchangeCase& test) { test.has_uneven_experts = false; }},
    Part{"quantized results",
         [](ExchangeCase& test) {
           if (test.combine_scheme.is_quantized()) test.combine_scheme = {test.results};
         }},
};

// What is so by contract on GPUs: a new dispatch reuses the slot of a kept routing.
ExchangeCase case_on(Device device, ExchangeCase test) {
  if (device.is_cpu()) return test;
  test.keeps_routing = test.keeps_routing && test.is_long;
  test.forgets_routing = true;
  return test;
}

struct Attempt {
  std::unique_ptr<ExchangeProbe> exchange;
  std::string refusal;
};

Attempt attempt(const Group& group, const ExchangeCase& test, Device device,
                const Tamper& tamper) try {
  return {std::make_unique<ExchangeProbe>(group, test, device, tamper), {}};
} catch (const Error& error) {
  if (error.code() != Errc::kNotSupported || device.is_cpu()) throw;
  return {nullptr, error.what()};
}

// Leaves out the part that is refused. False: none is.
bool leave_out_refused(const Group& group, Device device, const Tamper& tamper, ExchangeCase& test,
                       Attempt& last, std::vector<std::string>& left_out) {
  for (const Part& part : kParts) {
    ExchangeCase less = test;
    part.leave_out(less);
    if (less.describe() == test.describe() && less.config() == test.config()) continue;
    Attempt next = attempt(group, less, device, tamper);
    if (next.exchange == nullptr && next.refusal == last.refusal) continue;
    left_out.emplace_back(part.name);
    test = less;
    last = std::move(next);
    return true;
  }
  return false;
}

using Rounds = void (*)(ExchangeProbe&, const Group&, const ExchangeCase&);

Agreement run(Rounds rounds, const Group& group, const ExchangeCase& wanted, Device device,
              const Tamper& tamper) try {
  Agreement agreement;
  ExchangeCase test = case_on(device, wanted);
  Attempt last = attempt(group, test, device, tamper);
  while (last.exchange == nullptr) {
    if (leave_out_refused(group, device, tamper, test, last, agreement.left_out)) continue;
    agreement.skipped = last.refusal;
    return agreement;
  }
  if (device.is_cuda()) agreement.heap = last.exchange->heap();
  agreement.is_shared_gpu = last.exchange->is_shared_gpu();
  rounds(*last.exchange, group, test);
  return agreement;
} catch (const Error& error) {
  throw Error(error.code(), fmt::format("{} ({})", error.what(), wanted.describe()));
} catch (const std::exception& error) {
  throw Difference(fmt::format("rank {}: {} ({})", group.rank(), error.what(), wanted.describe()));
}

}  // namespace

Agreement check_exchange(const Group& group, const ExchangeCase& test, Device device,
                         const Tamper& tamper) {
  return run(check_rounds, group, test, device, tamper);
}

Agreement check_two_in_flight(const Group& group, const ExchangeCase& test, Device device,
                              const Tamper& tamper) {
  return run(check_both, group, test, device, tamper);
}

}  // namespace switchyard::conformance
