// SPDX-License-Identifier: Apache-2.0
//
// arrived_rows.h: quantization after dispatch: of rows that travelled in another form, because no
// sender knows their scale or because the experts want another scheme. Only valid rows are read.
#pragma once

#include <optional>
#include <vector>

#include "switchyard/exchange.h"

#include "core/aligned_buffer.h"
#include "exchange/scale_blocks.h"

namespace switchyard {

class ArrivedRows {
 public:
  /// Memory for receive buffers of up to `max_rows` rows, in up to `max_blocks` expert blocks.
  ArrivedRows(const QuantScheme& scheme, std::int64_t hidden, ScaleLayout scale_layout,
              std::optional<float> static_scale, std::int64_t max_rows, std::int64_t max_blocks);

  /// Replaces what `dispatched` says about rows and scales by rows quantized here. Rows that are
  /// quantized already are dequantized and rounded to bf16 first; so are f16 and f32 rows for
  /// simulated schemes. A dynamic scale of a whole tensor
  /// is taken over all valid rows.
  void quantize(Layout layout, Dispatched& dispatched);

 private:
  struct Row {
    const std::byte* data;
    DType dtype;
  };

  ScaleBlocks scale_blocks(Layout layout, const ExpertRows& from) const;
  float largest_magnitude(const ExpertRows& from, const std::vector<std::int64_t>& rows);
  Row input_row(const ExpertRows& from, std::int64_t row);

  QuantScheme scheme_;
  std::int64_t hidden_;
  ScaleLayout scale_layout_;
  std::optional<float> static_scale_;
  float tensor_scale_ = 1.0f;
  AlignedBuffer rows_;
  AlignedBuffer scales_;
  AlignedBuffer row_scales_;   ///< of one row, side by side
  AlignedBuffer wire_scales_;  ///< of one row as it arrived
  AlignedBuffer wide_;         ///< one row in f32
  AlignedBuffer narrow_;       ///< one row in bf16
};

}  // namespace switchyard
