// SPDX-License-Identifier: Apache-2.0
//
// tiled_experts.h: an expert MLP around any pair of GEMMs: rows are taken in tiles, so that scratch
// does not grow with the batch, widened to f32, multiplied, activated, rounded and multiplied
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "switchyard/experts.h"

#include "moe/expert_checks.h"

namespace switchyard {

/// The GEMMs of all experts, f32 to f32 on the outside. Belongs to one thread at a time.
class ExpertGemms {
 public:
  ExpertGemms() = default;
  ExpertGemms(const ExpertGemms&) = delete;
  ExpertGemms& operator=(const ExpertGemms&) = delete;
  virtual ~ExpertGemms() = default;

  /// Rows of a call, at most.
  virtual std::int64_t max_tile_rows() const = 0;
  /// Floats between rows of the results.
  virtual std::int64_t gate_up_stride() const = 0;
  virtual std::int64_t down_stride() const = 0;
  /// Where `up` begins in a row of the first result; `gate` begins at 0.
  virtual std::int64_t up_column() const = 0;
  virtual std::size_t scratch_bytes(std::int64_t tile_rows) const = 0;

  /// x [num_rows, H] contiguous; y [num_rows, gate_up_stride()]; scratch is 64-byte aligned.
  virtual void gate_up(std::int64_t expert, const float* x, std::int64_t num_rows, float* y,
                       std::byte* scratch) = 0;
  /// h [num_rows, I] contiguous; y [num_rows, down_stride()].
  virtual void down(std::int64_t expert, const float* h, std::int64_t num_rows, float* y,
                    std::byte* scratch) = 0;
};

class TiledExperts final : public Experts {
 public:
  TiledExperts(std::string name, bool has_fixed_order, const ExpertShape& shape,
               const ExpertOptions& options, std::unique_ptr<ExpertGemms> gemms);

  std::string_view name() const override { return name_; }
  bool is_batch_invariant() const override;
  std::size_t workspace_bytes(std::int64_t num_rows) const override;
  void apply(const ExpertRows& input, const TensorView& output,
             std::span<std::byte> workspace) override;

 private:
  struct Scratch;
  struct RowRange {
    std::int64_t expert;
    std::int64_t first;
    std::int64_t count;
  };

  Scratch carve(std::int64_t num_rows, std::byte* base) const;
  void load_rows(const ExpertRows& input, const RowRange& tile, const Scratch& scratch) const;
  void first_half(const ExpertRows& input, const RowRange& tile, float* h, const Scratch& scratch);
  void second_half(const TensorView& output, const RowRange& tile, const float* h,
                   const Scratch& scratch);
  void run(const ExpertRows& input, const RowRange& group, const TensorView& output,
           const Scratch& scratch);
  /// Rows of an expert whose activations are rounded together.
  std::int64_t group_rows(std::int64_t num_rows) const;

  std::string name_;
  bool has_fixed_order_;
  ExpertShape shape_;
  ExpertOptions options_;
  std::unique_ptr<ExpertGemms> gemms_;
};

}  // namespace switchyard
