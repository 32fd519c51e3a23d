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

void combine(Exchange& exchange, const ExchangeCase& test, const Round& round,
             const DispatchHandle& handle) {
  const Outputs outputs(test, round);
  const Tensor rows = round.results();
  const CombineOptions options = outputs.options(round);
  const Tensor weights = test.returns_weights ? round.row_weights() : Tensor();
  exchange.combine(handle, rows, outputs.output(), options, weights);
  outputs.check(round);
}

void check_rounds(const Group& group, const ExchangeCase& test) {
  Exchange exchange(group, test.config());
  const auto finish = [&](const Round& round, const Dispatched& got) {
    round.check_received(exchange, got);
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
  const Round again(second, 2);
  finish(again,
         exchange.dispatch_again(kept, again.tokens(), again.weights(), again.dispatch_options()));
  combine(exchange, test, again.reopened(), exchange.reopen(kept));
  const Round lone(group, test, 3);
  finish(lone,
         exchange.dispatch(lone.tokens(), lone.ids(true), lone.weights(), lone.dispatch_options()));
  // Another routing has been there since.
  const Round late(second, 4);
  finish(late,
         exchange.dispatch_again(kept, late.tokens(), late.weights(), late.dispatch_options()));
}

void check_both(const Group& group, const ExchangeCase& test) {
  ExchangeConfig config = test.config();
  config.max_in_flight = 2;
  Exchange exchange(group, config);
  std::optional<Round> kept;
  DispatchHandle kept_handle;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Round first(group, test, repeat);
    const Round second = kept ? Round(*kept, 7 + repeat) : Round(group, test, 6);
    const DispatchHandle a = exchange.dispatch_send(first.tokens(), first.ids(false),
                                                    first.weights(), first.dispatch_options());
    const DispatchHandle b =
        kept ? exchange.dispatch_again_send(kept_handle, second.tokens(), second.weights(),
                                            second.dispatch_options())
             : exchange.dispatch_send(second.tokens(), second.ids(true), second.weights(),
                                      second.dispatch_options());
    const Dispatched got_b = exchange.dispatch_receive(b);
    const Dispatched got_a = exchange.dispatch_receive(a);
    first.check_received(exchange, got_a);
    second.check_received(exchange, got_b);
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

template <typename Check>
void with_description(const Group& group, const ExchangeCase& test, Check check) try {
  check(group, test);
} catch (const Error& error) {
  throw Error(error.code(), fmt::format("{} ({})", error.what(), test.describe()));
} catch (const std::exception& error) {
  throw Difference(fmt::format("rank {}: {} ({})", group.rank(), error.what(), test.describe()));
}

}  // namespace

void check_exchange(const Group& group, const ExchangeCase& test) {
  with_description(group, test, check_rounds);
}

void check_two_in_flight(const Group& group, const ExchangeCase& test) {
  with_description(group, test, check_both);
}

}  // namespace switchyard::conformance
