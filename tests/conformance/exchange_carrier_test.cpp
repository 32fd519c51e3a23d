// SPDX-License-Identifier: Apache-2.0
//
// The suite detects a single wrong bit in anything that a carrier delivers, in any round.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/error.h"

#include "conformance/compare.h"
#include "conformance/exchange_suite.h"
#include "support/ranks.h"

namespace switchyard::conformance {
namespace {

using ::testing::HasSubstr;

enum class Wrong { kNothing, kRow, kScale, kWeight, kCount, kOrigin, kOutput, kReturnedWeight };

// Exchange with one bit of one rank's result flipped in one round.
class WrongCarrier final : public Carrier {
 public:
  WrongCarrier(const Group& group, const ExchangeCase& test, Wrong wrong, int round)
      : carrier_(make_host_carrier(group, test.config())),
        wrong_(group.rank() == 1 ? wrong : Wrong::kNothing),
        round_(round) {}

  int dispatch_send(const TensorView& tokens, const TensorView& ids, const TensorView& weights,
                    const DispatchOptions& options) override {
    return carrier_->dispatch_send(tokens, ids, weights, options);
  }
  int dispatch_again_send(int earlier, const TensorView& tokens, const TensorView& weights,
                          const DispatchOptions& options) override {
    return carrier_->dispatch_again_send(earlier, tokens, weights, options);
  }
  Received dispatch_receive(int handle) override {
    return spoiled(carrier_->dispatch_receive(handle));
  }
  Received dispatch(const TensorView& tokens, const TensorView& ids, const TensorView& weights,
                    const DispatchOptions& options) override {
    return spoiled(carrier_->dispatch(tokens, ids, weights, options));
  }
  Received dispatch_again(int earlier, const TensorView& tokens, const TensorView& weights,
                          const DispatchOptions& options) override {
    return spoiled(carrier_->dispatch_again(earlier, tokens, weights, options));
  }
  int reopen(int earlier) override { return carrier_->reopen(earlier); }
  void combine_send(int handle, const TensorView& rows, const TensorView& weights) override {
    carrier_->combine_send(handle, rows, weights);
  }
  void combine_receive(int handle, const TensorView& output,
                       const CombineOptions& options) override {
    carrier_->combine_receive(handle, output, options);
  }
  void combine(int handle, const TensorView& rows, const TensorView& output,
               const CombineOptions& options, const TensorView& weights) override {
    carrier_->combine(handle, rows, output, options, weights);
    if (num_received_ != round_) return;
    if (wrong_ == Wrong::kOutput) flip(output);
    if (wrong_ == Wrong::kReturnedWeight) flip(options.returned_weights);
  }

 private:
  static void flip(const TensorView& view) { view.as<std::byte>()[0] ^= std::byte{1}; }

  Received spoiled(Received got) {
    if (++num_received_ != round_) return got;
    if (wrong_ == Wrong::kRow) flip(got.rows.experts.rows);
    if (wrong_ == Wrong::kScale) flip(got.rows.experts.scales);
    if (wrong_ == Wrong::kWeight) flip(got.rows.topk_weights);
    if (wrong_ == Wrong::kCount) ++got.rows.num_rows;
    if (wrong_ == Wrong::kOrigin) ++got.origins.front().token;
    return got;
  }

  std::unique_ptr<Carrier> carrier_;
  Wrong wrong_;
  int round_;
  int num_received_ = 0;
};

ExchangeCase small_case() {
  ExchangeCase test;
  test.shape = {.num_experts = 4, .num_topk = 2, .hidden = 130};
  test.scheme = schemes::kFp8Block;
  test.returns_weights = true;
  return test;
}

std::string difference_of(Wrong wrong, int round) {
  const ExchangeCase test = small_case();
  try {
    test::run_ranks(2, [&](const Group& group) {
      WrongCarrier carrier(group, test, wrong, round);
      check_exchange(carrier, group, test);
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(ExchangeCarrierTest, ARightCarrierAgrees) { EXPECT_EQ(difference_of(Wrong::kNothing, 1), ""); }

TEST(ExchangeCarrierTest, EveryWrongBitIsFoundInEveryRound) {
  for (const int round : {1, 2, 3}) {
    EXPECT_THAT(difference_of(Wrong::kRow, round), HasSubstr("row 0 differs"));
    EXPECT_THAT(difference_of(Wrong::kScale, round), HasSubstr("scale 0 of row 0 differs"));
    EXPECT_THAT(difference_of(Wrong::kWeight, round), HasSubstr("topk_weights differ"));
    EXPECT_THAT(difference_of(Wrong::kCount, round), HasSubstr("rows, want"));
    EXPECT_THAT(difference_of(Wrong::kOrigin, round), HasSubstr("origin of row 0"));
    EXPECT_THAT(difference_of(Wrong::kOutput, round), HasSubstr("output[0, 0] has other bits"));
    EXPECT_THAT(difference_of(Wrong::kReturnedWeight, round), HasSubstr("returned weight [0, 0]"));
  }
}

// Rounds that a GPU's carrier leaves out do not change the others.
TEST(ExchangeCarrierTest, RoundsWithAKeptRoutingCanBeLeftOut) {
  for (ExchangeCase test : {small_case(), two_in_flight_cases(2).front()}) {
    test.keeps_routing = false;
    EXPECT_NO_THROW(test::run_ranks(2, [&](const Group& group) {
      if (test.max_in_flight == 1) return check_exchange(group, test);
      check_two_in_flight(group, test);
    }));
  }
}

}  // namespace
}  // namespace switchyard::conformance
