// SPDX-License-Identifier: Apache-2.0
//
// The suite detects a single wrong bit in anything that an exchange delivers, in any round.

#include "conformance/exchange_suite.h"

#include <gmock/gmock.h>

#include "switchyard/error.h"

#include "conformance/compare.h"
#include "support/ranks.h"

namespace switchyard::conformance {
namespace {

using ::testing::HasSubstr;

enum class Wrong { kNothing, kRow, kScale, kWeight, kCount, kOrigin, kOutput, kReturnedWeight };

// One bit of rank 1's result is flipped in one round.
class Spoiler {
 public:
  Spoiler(const Group& group, Wrong wrong, int round)
      : wrong_(group.rank() == 1 ? wrong : Wrong::kNothing), round_(round) {}

  Tamper tamper() {
    return {[this](Received& got) { spoil(got); },
            [this](const TensorView& output, const TensorView& returned) {
              if (num_received_ != round_) return;
              if (wrong_ == Wrong::kOutput) flip(output);
              if (wrong_ == Wrong::kReturnedWeight) flip(returned);
            }};
  }

 private:
  static void flip(const TensorView& view) { view.as<std::byte>()[0] ^= std::byte{1}; }

  void spoil(Received& got) {
    if (++num_received_ != round_) return;
    if (wrong_ == Wrong::kRow) flip(got.rows.experts.rows);
    if (wrong_ == Wrong::kScale) flip(got.rows.experts.scales);
    if (wrong_ == Wrong::kWeight) flip(got.rows.topk_weights);
    if (wrong_ == Wrong::kCount) flip(got.rows.total_rows);
    if (wrong_ == Wrong::kOrigin) ++got.origins.front().token;
  }

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
      Spoiler spoiler(group, wrong, round);
      check_exchange(group, test, Device::cpu(), spoiler.tamper());
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(ExchangeSuiteTest, ARightExchangeAgrees) { EXPECT_EQ(difference_of(Wrong::kNothing, 1), ""); }

TEST(ExchangeSuiteTest, EveryWrongBitIsFoundInEveryRound) {
  for (const int round : {1, 2, 3}) {
    EXPECT_THAT(difference_of(Wrong::kRow, round), HasSubstr("row 0 differs"));
    EXPECT_THAT(difference_of(Wrong::kScale, round), HasSubstr("scale 0 of row 0 differs"));
    EXPECT_THAT(difference_of(Wrong::kWeight, round), HasSubstr("topk_weights differ"));
    EXPECT_THAT(difference_of(Wrong::kCount, round), HasSubstr("rows, expected"));
    EXPECT_THAT(difference_of(Wrong::kOrigin, round), HasSubstr("origin of row 0"));
    EXPECT_THAT(difference_of(Wrong::kOutput, round), HasSubstr("output[0, 0] has other bits"));
    EXPECT_THAT(difference_of(Wrong::kReturnedWeight, round), HasSubstr("returned weight [0, 0]"));
  }
}

// Rounds that are left out on a GPU do not change the others.
TEST(ExchangeSuiteTest, RoundsWithAKeptRoutingCanBeLeftOut) {
  for (ExchangeCase test : {small_case(), two_in_flight_cases(2).front()}) {
    test.keeps_routing = false;
    EXPECT_NO_THROW(test::run_ranks(2, [&](const Group& group) {
      if (test.max_in_flight == 1) {
        check_exchange(group, test);
      } else {
        check_two_in_flight(group, test);
      }
    }));
  }
}

}  // namespace
}  // namespace switchyard::conformance
