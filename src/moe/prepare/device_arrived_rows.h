// SPDX-License-Identifier: Apache-2.0
//
// device_arrived_rows.h: quantization after dispatch on a GPU: of rows that travelled in another
// form than the experts want. Rows that hold no token may be read, never their result.
#pragma once

#include "switchyard/device_exchange.h"
#include "switchyard/device_experts.h"
#include "switchyard/prepare_finalize.h"

#include "device/device_tensors.h"
#include "exchange/scale_blocks.h"

namespace switchyard {

class DeviceArrivedRows {
 public:
  /// `wire`: the exchange whose rows come; `num_rows` and `num_blocks`: rows and experts of its
  /// receive buffer. `static_scale`: [1] f32 of the GPU, or absent. Memory of `tensors`.
  ///
  /// Errors: kNotSupported; kOutOfMemory.
  DeviceArrivedRows(const ExchangeConfig& wire, const PrepareFinalizeConfig& config,
                    std::int64_t num_rows, std::int64_t num_blocks, const TensorView& static_scale,
                    DeviceTensors& tensors);

  /// Replaces what `experts` says about rows and scales by rows quantized here.
  ///
  ///   counts  [L] i32 in a batch, else [1]: valid rows, the first ones; absent, not in a batch:
  ///   all
  void quantize(const TensorView& counts, DeviceExpertRows& experts, Stream stream) const;

 private:
  struct Scales {
    TensorView blocks;  ///< as quantize_batched takes them
    TensorView flat;    ///< as experts do
  };
  TensorView shaped(const TensorView& rows, std::int64_t capacity, bool is_batch) const;
  Scales scales_of(std::int64_t capacity) const;

  QuantScheme wire_;
  QuantScheme scheme_;
  std::int64_t hidden_;
  std::int64_t num_experts_ = 1;  ///< blocks of rows with a count each
  ScaleBlocks blocks_;
  TensorView static_scale_;
  TensorView all_rows_;  ///< [1] i32: as many as there can be
  TensorView narrow_;    ///< [N, H] bf16; absent where rows are quantized as they come
  TensorView rows_;      ///< [experts, rows, H]; absent for bf16
  TensorView scales_;    ///< as quantize_batched takes them; or absent
};

}  // namespace switchyard
