// SPDX-License-Identifier: Apache-2.0
//
// quantize_file.h: the matrices of a safetensors file quantized, and back; docs/quantize.md has the
// names, dtypes and metadata of what is written.
#pragma once

#include <optional>
#include <string>

#include "switchyard/quant.h"

namespace switchyard::cli {

/// Metadata of quantized files: their scheme.
inline constexpr const char* kSchemeKey = "switchyard.scheme";

struct QuantizeOptions {
  std::string scheme;
  std::string input;
  std::string output;
  bool dequantize = false;
  std::string scale_layout = "row";
  bool pack_ue8m0 = false;
  std::optional<float> static_scale;
  std::optional<float> global_scale;  ///< of nvfp4; absent: 448 * 6 / largest magnitude
  std::string names = "*";            ///< pattern of the matrices that are quantized
  std::string dtype;                  ///< of dequantized matrices; empty: what they were
};

struct QuantizeSummary {
  std::string scheme;
  int num_converted = 0;  ///< matrices quantized or dequantized
  int num_copied = 0;
  std::int64_t input_bytes = 0;  ///< of tensors
  std::int64_t output_bytes = 0;
};

/// Errors: kInvalidArgument (options that do not fit the scheme or a matrix, names that collide),
/// kMalformedFile, kNotSupported (a dtype that the library does not have), kSystem. The output
/// appears whole or not at all.
QuantizeSummary quantize_file(const QuantizeOptions& options);

/// The inverse, by the metadata of the file. Errors: as above.
QuantizeSummary dequantize_file(const QuantizeOptions& options);

}  // namespace switchyard::cli
