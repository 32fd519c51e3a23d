// SPDX-License-Identifier: Apache-2.0

#include "conformance/exchange_suite.h"

#include <optional>
#include <stdexcept>

#include "switchyard/error.h"

#include "conformance/exchange_round.h"

namespace switchyard::conformance {
namespace {

// What one combine writes.
class Outputs {
 public:
  Outputs(const ExchangeCase& test, const Round& round)
      : output_(poisoned(test.output, round.num_tokens(), test.shape.hidden)) {
    if (test.returns_weights) {
      returned_.emplace(poisoned(DType::kF32, round.num_tokens(), test.shape.num_topk));
    }
  }

  const TensorView& output() const { return output_; }
  CombineOptions options(const Round& round) const {
    CombineOptions options = round.combine_options();
    if (returned_) options.returned_weights = *returned_;
    return options;
  }
  void check(const Round& round) const {
    round.check_output(output_);
    if (returned_) round.check_returned_weights(*returned_);
  }

 private:
  Tensor output_;
  std::optional<Tensor> returned_;
};

void combine(Carrier& carrier, const ExchangeCase& test, const Round& round, int handle) {
  const Outputs outputs(test, round);
  const Tensor rows = round.results();
  const CombineOptions options = outputs.options(round);
  const Tensor weights = test.returns_weights ? round.row_weights() : Tensor();
  carrier.combine(handle, rows, outputs.output(), options, weights);
  outputs.check(round);
}

void check_rounds(Carrier& carrier, const Group& group, const ExchangeCase& test) {
  const auto finish = [&](const Round& round, const Received& got) {
    round.check_received(got);
    combine(carrier, test, round, got.handle);
    return got.handle;
  };
  const Round first(group, test, 0);
  finish(first, carrier.dispatch(first.tokens(), first.ids(false), first.weights(),
                                 first.dispatch_options()));
  if (!test.is_long) return;
  const Round second(group, test, 1);
  const int kept =
      finish(second,
             carrier.dispatch_receive(carrier.dispatch_send(
                 second.tokens(), second.ids(false), second.weights(), second.dispatch_options())));
  if (test.keeps_routing) {
    const Round again(second, 2);
    finish(again,
           carrier.dispatch_again(kept, again.tokens(), again.weights(), again.dispatch_options()));
    combine(carrier, test, again.reopened(), carrier.reopen(kept));
  }
  const Round lone(group, test, 3);
  finish(lone,
         carrier.dispatch(lone.tokens(), lone.ids(true), lone.weights(), lone.dispatch_options()));
  if (!test.keeps_routing || test.forgets_routing) return;
  // Another routing has been there since.
  const Round late(second, 4);
  finish(late,
         carrier.dispatch_again(kept, late.tokens(), late.weights(), late.dispatch_options()));
}

void check_both(Carrier& carrier, const Group& group, const ExchangeCase& test) {
  std::optional<Round> kept;
  int kept_handle = -1;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const bool is_again = kept && test.keeps_routing;
    const Round first(group, test, repeat);
    const Round second = is_again ? Round(*kept, 7 + repeat) : Round(group, test, 6 + repeat);
    const int a = carrier.dispatch_send(first.tokens(), first.ids(false), first.weights(),
                                        first.dispatch_options());
    const int b = is_again
                      ? carrier.dispatch_again_send(kept_handle, second.tokens(), second.weights(),
                                                    second.dispatch_options())
                      : carrier.dispatch_send(second.tokens(), second.ids(true), second.weights(),
                                              second.dispatch_options());
    const Received got_b = carrier.dispatch_receive(b);
    const Received got_a = carrier.dispatch_receive(a);
    first.check_received(got_a);
    second.check_received(got_b);
    const Tensor rows_a = first.results();
    const Tensor rows_b = second.results();
    const Outputs out_a(test, first);
    const Outputs out_b(test, second);
    const auto weights = [&](const Round& round) {
      return test.returns_weights ? round.row_weights() : Tensor();
    };
    carrier.combine_send(b, rows_b, weights(second));
    carrier.combine_send(a, rows_a, weights(first));
    carrier.combine_receive(a, out_a.output(), out_a.options(first));
    carrier.combine_receive(b, out_b.output(), out_b.options(second));
    out_a.check(first);
    out_b.check(second);
    kept.emplace(second);
    kept_handle = b;
  }
}

template <typename Check>
void with_description(const Group& group, const ExchangeCase& test, Check check) try {
  check();
} catch (const Error& error) {
  throw Error(error.code(), fmt::format("{} ({})", error.what(), test.describe()));
} catch (const std::exception& error) {
  throw Difference(fmt::format("rank {}: {} ({})", group.rank(), error.what(), test.describe()));
}

}  // namespace

void check_exchange(Carrier& carrier, const Group& group, const ExchangeCase& test) {
  with_description(group, test, [&] { check_rounds(carrier, group, test); });
}

void check_exchange(const Group& group, const ExchangeCase& test) {
  with_description(group, test,
                   [&] { check_rounds(*make_host_carrier(group, test.config()), group, test); });
}

void check_two_in_flight(Carrier& carrier, const Group& group, const ExchangeCase& test) {
  with_description(group, test, [&] { check_both(carrier, group, test); });
}

void check_two_in_flight(const Group& group, const ExchangeCase& test) {
  with_description(group, test,
                   [&] { check_both(*make_host_carrier(group, test.config()), group, test); });
}

}  // namespace switchyard::conformance
