// SPDX-License-Identifier: Apache-2.0
//
// prepare_finalize_oracle.h: what a class must return, from the layouts, quantizers and sums of the
// oracle.
#pragma once

#include <optional>
#include <vector>

#include "prepare_finalize_case.h"
#include "reference/reference.h"

namespace switchyard::test {

struct ExpectedRows {
  std::vector<reference::Position> positions;  ///< valid rows
  std::int64_t num_rows = 0;                   ///< of the receive buffer
  std::vector<std::int32_t> counts;            ///< [L] rows, or tokens that name the expert
  reference::Table<std::uint8_t> elements;     ///< [positions, bytes] as stored
  reference::Table<std::uint8_t> scales;       ///< [positions, bytes] as stored
  std::optional<float> tensor_scale;
  reference::Table<std::int64_t> topk_ids;  ///< of every row of the buffer; empty if there are none
  DType ids_dtype = DType::kI32;
  reference::Table<float> topk_weights;
};

class ClassOracle {
 public:
  /// `batch` has ids before any mapping.
  ClassOracle(const ClassCase& test, const reference::Batch& batch);

  ExpectedRows received(int rank) const;
  reference::Table<float> output(int rank) const;

 private:
  std::pair<const reference::Batch*, int> seen_by(int rank) const;
  QuantScheme wire() const;
  reference::Table<float> travelled(const reference::Batch& batch,
                                    const std::vector<reference::Position>& rows) const;
  reference::Table<float> read_by_experts(const reference::Batch& batch, int rank,
                                          const reference::ExpertMajor& placed) const;
  void place(const reference::Batch& batch, int rank, ExpectedRows& want) const;
  void place_tokens(const reference::Batch& batch, int rank, ExpectedRows& want) const;
  reference::RankMajor tokens_of(const reference::Batch& batch, int rank) const;

  ClassCase test_;
  reference::Batch batch_;               ///< physical ids
  std::vector<reference::Batch> alone_;  ///< kLocal: each rank by itself
};

/// Returns the factor with which expert e multiplies a row.
inline float factor_of(std::int64_t expert) { return 1.0f + static_cast<float>(expert) / 4.0f; }

}  // namespace switchyard::test
