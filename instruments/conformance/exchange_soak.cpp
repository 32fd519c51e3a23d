// SPDX-License-Identifier: Apache-2.0

#include "conformance/exchange_soak.h"

#include <memory>
#include <utility>
#include <vector>

#include "switchyard/error.h"

#include "conformance/exchange_outputs.h"
#include "conformance/exchange_round.h"
#include "core/random.h"

namespace switchyard::conformance {
namespace {

constexpr int kNumRounds = 6;  // of each exchange

// A round with what experts return for it and, once the oracle has found it right, its output.
struct Twin {
  Twin(const ExchangeCase& test, Round which)
      : round(std::move(which)),
        results(round.results()),
        row_weights(test.returns_weights ? round.row_weights() : Tensor()) {}

  void check(Outputs outputs) {
    if (right == nullptr) {
      outputs.check(round);
      right = std::make_unique<Outputs>(std::move(outputs));
    } else {
      expect(outputs.is_same(*right), "an output has other bits than the same round had before");
    }
  }

  Round round;
  Tensor results;
  Tensor row_weights;
  std::unique_ptr<Outputs> right;
};

class Soak {
 public:
  Soak(const Group& group, const ExchangeCase& test, Device device, const Tamper& tamper)
      : test_(test), exchange_(group, test, device, tamper) {
    for (int number = 0; number < kNumRounds; ++number) {
      const Round round(group, test_, number);
      first_.push_back(std::make_unique<Twin>(test_, round));
      again_.push_back(std::make_unique<Twin>(test_, Round(round, kNumRounds + number)));
      reopened_.push_back(std::make_unique<Twin>(test_, round.reopened()));
    }
  }

  std::int64_t run(std::int64_t num_pairs) {
    for (std::uint64_t step = 0; num_pairs_ < num_pairs; ++step) {
      dice_ = random_bits(test_.seed, step);
      if (test_.max_in_flight > 1 && roll(2) == 0) {
        run_two();
      } else {
        run_one();
      }
    }
    return num_pairs_;
  }

 private:
  // The same number on every rank.
  std::size_t roll(std::size_t sides) {
    const std::size_t side = dice_ % sides;
    dice_ /= sides;
    return side;
  }

  void run_one() {
    const std::size_t number = roll(kNumRounds);
    Twin& twin = *first_[number];
    const Received got = dispatch(twin);
    if (roll(8) == 0) {
      exchange_.release(got.handle);
    } else {
      combine(twin, got.handle);
    }
    if (roll(4) == 0) run_again(*again_[number], got.handle);
    if (roll(8) != 0) return;
    combine(*reopened_[number], exchange_.reopen(got.handle));
    --num_pairs_;  // a combine without a dispatch
  }

  Received dispatch(const Twin& twin) {
    const Round& round = twin.round;
    const bool is_wide = roll(2) == 0;
    const Received got =
        roll(2) == 0
            ? exchange_.dispatch(round.tokens(), round.ids(is_wide), round.weights(),
                                 round.dispatch_options())
            : exchange_.dispatch_receive(exchange_.dispatch_send(
                  round.tokens(), round.ids(is_wide), round.weights(), round.dispatch_options()));
    round.check_received(got);
    return got;
  }

  void run_again(Twin& twin, const DispatchHandle& earlier) {
    const Round& round = twin.round;
    const Received got = exchange_.dispatch_again(earlier, round.tokens(), round.weights(),
                                                  round.dispatch_options());
    round.check_received(got);
    combine(twin, got.handle);
  }

  void combine(Twin& twin, const DispatchHandle& handle) {
    Outputs outputs(test_, twin.round);
    if (roll(2) == 0) {
      exchange_.combine(handle, twin.results, outputs.output(), outputs.options(twin.round),
                        twin.row_weights);
    } else {
      exchange_.combine_send(handle, twin.results, twin.row_weights);
      exchange_.combine_receive(handle, outputs.output(), outputs.options(twin.round));
    }
    twin.check(std::move(outputs));
    ++num_pairs_;
  }

  // Two handles alive at once, combined in the other order.
  void run_two() {
    Twin& a = *first_[roll(kNumRounds)];
    Twin& b = *first_[roll(kNumRounds)];
    const auto send = [&](const Round& round) {
      return exchange_.dispatch_send(round.tokens(), round.ids(roll(2) == 0), round.weights(),
                                     round.dispatch_options());
    };
    const DispatchHandle handle_a = send(a.round);
    const DispatchHandle handle_b = send(b.round);
    b.round.check_received(exchange_.dispatch_receive(handle_b));
    a.round.check_received(exchange_.dispatch_receive(handle_a));
    Outputs out_a(test_, a.round);
    Outputs out_b(test_, b.round);
    exchange_.combine_send(handle_b, b.results, b.row_weights);
    exchange_.combine_send(handle_a, a.results, a.row_weights);
    exchange_.combine_receive(handle_a, out_a.output(), out_a.options(a.round));
    exchange_.combine_receive(handle_b, out_b.output(), out_b.options(b.round));
    a.check(std::move(out_a));
    b.check(std::move(out_b));
    num_pairs_ += 2;
  }

  const ExchangeCase test_;
  ExchangeProbe exchange_;
  std::vector<std::unique_ptr<Twin>> first_;
  std::vector<std::unique_ptr<Twin>> again_;     ///< the same routing, other tokens
  std::vector<std::unique_ptr<Twin>> reopened_;  ///< the same rows, weights of 1
  std::uint64_t dice_ = 0;
  std::int64_t num_pairs_ = 0;
};

}  // namespace

SoakTally soak_exchange(const Group& group, const ExchangeCase& test, Device device,
                        std::int64_t num_pairs, const Tamper& tamper) try {
  std::unique_ptr<Soak> soak;
  try {
    soak = std::make_unique<Soak>(group, test, device, tamper);
  } catch (const Error& error) {
    if (error.code() != Errc::kNotSupported) throw;
    return {0, error.what()};
  }
  return {soak->run(num_pairs), {}};
} catch (const Error& error) {
  throw Error(error.code(), fmt::format("{} ({})", error.what(), test.describe()));
} catch (const std::exception& error) {
  throw Difference(fmt::format("rank {}: {} ({})", group.rank(), error.what(), test.describe()));
}

}  // namespace switchyard::conformance
