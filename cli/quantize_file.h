// SPDX-License-Identifier: Apache-2.0
//
// quantize_file.h: quantizes the matrices of a safetensors file, and dequantizes them;
// docs/quantize.md lists the names, dtypes and metadata of the result.
#pragma once

#include <optional>
#include <string>

#include "switchyard/quant.h"

namespace switchyard::cli {

/// Metadata key of a quantized file; the value is its scheme.
inline constexpr const char* kSchemeKey = "switchyard.scheme";

struct QuantizeOptions {
  std::string scheme;
  std::string input;
  std::string output;
  bool dequantize = false;
  std::string scale_layout = "row_major";
  bool pack_ue8m0 = false;
  std::optional<float> static_scale;
  std::optional<float> global_scale;  ///< nvfp4 only; absent: 448 * 6 / largest magnitude
  std::string names = "*";            ///< pattern of the matrices to quantize
  std::string dtype;                  ///< dtype of dequantized matrices; empty: the original one
};

struct QuantizeSummary {
  std::string scheme;
  int num_converted = 0;  ///< matrices quantized or dequantized
  int num_copied = 0;
  std::int64_t input_bytes = 0;  ///< bytes of tensors
  std::int64_t output_bytes = 0;
};

/// Errors: kInvalidArgument (options that do not fit the scheme or a matrix, names that collide),
/// kMalformedFile, kNotSupported (a dtype that the library does not have), kSystem. The output
/// appears complete or not at all.
QuantizeSummary quantize_file(const QuantizeOptions& options);

/// The inverse, driven by the file's metadata. Errors: those of quantize_file.
QuantizeSummary dequantize_file(const QuantizeOptions& options);

}  // namespace switchyard::cli
