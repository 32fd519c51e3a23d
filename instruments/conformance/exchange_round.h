// SPDX-License-Identifier: Apache-2.0
//
// exchange_round.h: one dispatch and combine seen from one rank, beside what the oracle says about
// all ranks.
#pragma once

#include <vector>

#include "conformance/exchange_case.h"
#include "conformance/exchange_probe.h"
#include "conformance/exchange_values.h"
#include "reference/reference.h"

namespace switchyard::conformance {

class Round {
 public:
  /// Number 3 has one token in all; other numbers differ in tokens, ids and weights.
  Round(const Group& group, const ExchangeCase& test, int number);
  /// The routing of `earlier` with other tokens and weights.
  Round(const Round& earlier, int number);
  /// The same, to be combined once more after reopen: all weights are 1.
  Round reopened() const;

  std::int64_t num_tokens() const { return own().num_tokens(); }
  TensorView tokens() const;
  TensorView ids(bool wide) const;
  TensorView weights() const;  ///< absent where the case gives none to dispatch
  DispatchOptions dispatch_options() const;
  CombineOptions combine_options() const;

  void check_received(const Received& received) const;

  /// What the experts make of the rows, [N, H]; rows without a token are garbage.
  Tensor results() const;
  /// [N] or [N, K], a value for each choice; absent unless the case returns weights.
  Tensor row_weights() const;

  void check_output(const TensorView& got) const;
  void check_returned_weights(const TensorView& got) const;

 private:
  /// What one rank receives: the one that the layout asks for.
  struct Placed {
    reference::ExpertMajor by_expert;
    reference::RankMajor by_token;
  };

  void make_tokens(std::uint64_t seed);
  void send();
  Placed place(int rank) const;
  const reference::RankInput& own() const { return batch_.ranks[static_cast<std::size_t>(rank_)]; }
  const Placed& placed(int rank) const { return placed_[static_cast<std::size_t>(rank)]; }
  const std::vector<reference::Position>& positions(int rank) const;
  std::int64_t num_rows(int rank) const;
  std::int64_t max_tokens() const;
  std::int64_t capacity() const;
  bool is_major() const { return is_expert_major(test_->layout); }

  void check_counts(const Dispatched& got) const;
  void check_host_counts(const Received& received) const;
  void check_origins(const std::vector<RowOrigin>& origins) const;
  void check_rows(const Dispatched& got) const;
  void check_scales(const Dispatched& got) const;
  void check_scale_shape(const TensorView& scales, std::int64_t num_scales) const;
  void check_payloads(const Dispatched& got) const;
  void check_routing(const Dispatched& got) const;
  void check_padding(const Dispatched& got) const;

  reference::Table<float> values(int rank) const;
  reference::Table<float> results(int rank) const;
  reference::Table<float> expected_output() const;
  reference::Table<float> partial_rows(int rank) const;

  const ExchangeCase* test_;
  int rank_;
  int num_ranks_;
  std::vector<int> hosts_;   ///< of the ranks
  reference::Batch wanted_;  ///< as the callers ask
  reference::Batch batch_;  ///< as it is served; tokens as they arrive where they are not quantized
  std::vector<reference::QuantizedRows> sent_;
  std::vector<Placed> placed_;
  std::vector<std::vector<reference::Table<std::uint8_t>>> payloads_;  ///< [P][payloads]
  Bytes token_bytes_;
  std::int64_t token_stride_ = 0;
  Bytes scale_bytes_;  ///< of quantized input, column after column
  std::vector<std::int64_t> wide_ids_;
  std::vector<reference::Table<float>> bias_;
  std::vector<Bytes> bias_bytes_;
};

}  // namespace switchyard::conformance
