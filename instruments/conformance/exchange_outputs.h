// SPDX-License-Identifier: Apache-2.0
//
// exchange_outputs.h: what one combine writes.
#pragma once

#include <cstring>
#include <optional>

#include "conformance/exchange_round.h"

namespace switchyard::conformance {

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
  bool is_same(const Outputs& other) const {
    return has_same_bytes(output_, other.output_) &&
           (!returned_ || has_same_bytes(*returned_, *other.returned_));
  }

 private:
  static bool has_same_bytes(const TensorView& a, const TensorView& b) {
    return a.num_bytes() == b.num_bytes() &&
           (a.num_bytes() == 0 || std::memcmp(a.data(), b.data(), a.num_bytes()) == 0);
  }

  Tensor output_;
  std::optional<Tensor> returned_;
};

}  // namespace switchyard::conformance
