// SPDX-License-Identifier: Apache-2.0
//
// arrived_rows.h: quantization after dispatch: of rows that travelled in another form, because no
// sender knows their scale or because the experts want another scheme.
#pragma once

#include <memory>

#include "switchyard/prepare_finalize.h"

namespace switchyard {

class ArrivedRows {
 public:
  ArrivedRows() = default;
  ArrivedRows(const ArrivedRows&) = delete;
  ArrivedRows& operator=(const ArrivedRows&) = delete;
  virtual ~ArrivedRows() = default;

  /// Replaces what `to.experts` says about rows and scales by rows quantized here. Rows that are
  /// quantized already are dequantized and rounded to bf16 first; so are f16 and f32 rows for
  /// simulated schemes. A dynamic scale of a whole tensor is taken over all valid rows.
  ///
  ///   counts  on GPUs: i32, valid rows, the first ones: [L] in a batch; [P] by rank for a
  ///           dynamic scale of a tensor, else absent; [1] in the other layouts
  virtual void quantize(const TensorView& counts, Prepared& to, Stream stream) = 0;
};

/// `wire`: the exchange whose rows come; `num_rows` and `num_blocks`: rows and experts of its
/// receive buffer. `static_scale`: [1] f32 on the device, or absent.
///
/// Errors: kOutOfMemory; on GPUs kNotSupported.
struct ArrivedRowsShape {
  const ExchangeConfig& wire;
  const PrepareFinalizeConfig& config;
  std::int64_t num_rows;
  std::int64_t num_blocks;
  TensorView static_scale;
  Device device;

  /// The largest magnitude decides, so it matters which rows are valid.
  bool is_dynamic_tensor() const {
    return config.scheme.group == ScaleGroup::kTensor && !static_scale.has_value();
  }
};
std::unique_ptr<ArrivedRows> make_host_arrived_rows(const ArrivedRowsShape& shape);
std::unique_ptr<ArrivedRows> make_gpu_arrived_rows(const ArrivedRowsShape& shape);

}  // namespace switchyard
