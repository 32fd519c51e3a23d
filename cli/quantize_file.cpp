// SPDX-License-Identifier: Apache-2.0

#include "quantize_file.h"

#include <cmath>
#include <deque>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "switchyard/scale_layout.h"

#include "common_options.h"
#include "core/bytes.h"
#include "core/fail.h"
#include "core/text.h"
#include "global_scale.h"
#include "io/safetensors.h"
#include "quant/scalar.h"

namespace switchyard::cli {
namespace {

constexpr const char* kLayoutKey = "switchyard.scale_layout";
constexpr const char* kPackedKey = "switchyard.pack_ue8m0";
constexpr const char* kTensorsKey = "switchyard.quantized";

// How one file is quantized.
struct Format {
  QuantScheme scheme;
  ScaleLayout layout = ScaleLayout::kRowMajor;
  bool packs = false;  ///< packs four e8m0 scales into an i32

  bool has_scales() const { return !scheme.is_simulated(); }
  bool is_tensor() const { return scheme.group == ScaleGroup::kTensor; }
  DType stored_scale_dtype() const { return packs ? DType::kI32 : scale_dtype(scheme); }
  std::int64_t scales_of_row(std::int64_t hidden) const {
    const std::int64_t num = num_scales(scheme, hidden);
    return packs ? num / 4 + (num % 4 != 0) : num;
  }
};

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

// The tensors to write, and the memory of those made here.
class Output {
 public:
  void add(const std::string& name, const TensorView& tensor) {
    count(name, tensor.num_bytes());
    tensors_.push_back({name, tensor});
  }
  /// As it lies in its file, which must outlive this.
  void add_copy(const StoredTensor& tensor) {
    count(tensor.name, tensor.bytes.size());
    copied_.push_back(tensor);
  }
  Tensor& own(Tensor tensor) {
    memory_.push_back(std::move(tensor));
    return memory_.back();
  }
  std::int64_t num_bytes() const { return bytes_; }
  void write(const std::string& path, const std::map<std::string, std::string>& metadata) const {
    write_safetensors(path, tensors_, metadata, copied_);
  }

 private:
  void count(const std::string& name, std::size_t num_bytes) {
    require(names_.insert(name).second, Errc::kInvalidArgument,
            "quantize: two tensors of the output are named {}; exclude one by --names",
            quote(name));
    bytes_ += static_cast<std::int64_t>(num_bytes);
  }

  std::vector<NamedTensor> tensors_;
  std::vector<StoredTensor> copied_;
  std::deque<Tensor> memory_;
  std::set<std::string> names_;
  std::int64_t bytes_ = 0;
};

// Files hold contiguous tensors only, so column-major scales are stored as rows of [S, N].
TensorView stored_view(const Format& format, const void* data, std::int64_t num_rows,
                       std::int64_t num) {
  const DType dtype = format.stored_scale_dtype();
  switch (format.layout) {
    case ScaleLayout::kColumnMajor: return TensorView(data, dtype, {num, num_rows});
    case ScaleLayout::kColumnMajorAligned:
      return TensorView(data, dtype, {num, (num_rows + 3) / 4 * 4});
    default: return view_scales(data, dtype, format.layout, num_rows, num);
  }
}

// Returns nvfp4's global scale, or the static scale of a per-tensor scheme; absent: dynamic.
std::optional<float> given_scale(const QuantizeOptions& options, const Format& format,
                                 const TensorView& x) {
  if (!format.scheme.needs_tensor_scale()) return options.static_scale;
  return options.global_scale.value_or(global_scale(largest_finite(x)));
}

// A matrix without elements has nothing to quantize, however many rows its header states.
bool is_quantized_by(const QuantizeOptions& options, const SafetensorsEntry& entry) {
  return entry.dtype && is_float(*entry.dtype) && entry.shape.size() == 2 &&
         entry.begin < entry.end && matches_pattern(options.names, entry.name);
}

void quantize_tensor(const QuantizeOptions& options, const Format& format, const std::string& name,
                     const TensorView& x, Output& output) {
  const QuantScheme& scheme = format.scheme;
  const std::int64_t num_rows = x.shape(0);
  const std::int64_t hidden = x.shape(1);
  require(scheme.dtype != DType::kE2M1 || hidden % 2 == 0, Errc::kInvalidArgument,
          "quantize: {} has rows of {} elements, must be even for {}; exclude it by --names", name,
          hidden, options.scheme);
  const std::optional<float> given = given_scale(options, format, x);
  const TensorView given_view = given ? TensorView::of(&*given, {1}) : TensorView{};
  const Tensor& q = output.own(Tensor(stored_dtype(scheme, x.dtype()), {num_rows, hidden}));
  const bool is_packed_pair = scheme.dtype == DType::kE2M1;
  output.add(name, is_packed_pair ? TensorView(q.data(), DType::kU8, {num_rows, hidden / 2})
                                  : TensorView(q));
  if (!format.has_scales()) {
    switchyard::quantize(x, scheme, q, {}, Stream::host(), given_view);
    return;
  }
  if (format.is_tensor()) {
    const Tensor& scale = output.own(Tensor(DType::kF32, {1}));
    switchyard::quantize(x, scheme, q, scale, Stream::host(), given_view);
    output.add(name + ".scale", scale);
    return;
  }
  const std::int64_t num = format.scales_of_row(hidden);
  OwnedScales scales = make_scales(format.stored_scale_dtype(), format.layout, num_rows, num);
  if (format.packs || format.layout == ScaleLayout::kSwizzled) {
    const Tensor rows(scale_dtype(scheme), {num_rows, num_scales(scheme, hidden)});
    switchyard::quantize(x, scheme, q, rows, Stream::host(), given_view);
    format.packs ? pack_ue8m0(rows, scales.view) : relayout_scales(rows, scales.view);
  } else {
    switchyard::quantize(x, scheme, q, scales.view, Stream::host(), given_view);
  }
  output.add(name + ".scale", stored_view(format, scales.memory.data(), num_rows, num));
  output.own(std::move(scales.memory));
  if (!scheme.needs_tensor_scale()) return;
  const Tensor& global = output.own(Tensor(DType::kF32, {1}));
  *global.as<float>() = *given;
  output.add(name + ".global_scale", global);
}

void check_scale(const char* option, const std::optional<float>& scale) {
  require(!scale || (std::isfinite(*scale) && *scale > 0.0f), Errc::kInvalidArgument,
          "quantize: {} is {}, must be a number above 0", option, scale.value_or(0.0f));
}

Format format_of(const QuantizeOptions& options) {
  const auto scheme = scheme_from_name(options.scheme);
  require(scheme && scheme->is_quantized(), Errc::kInvalidArgument,
          "quantize: --scheme is \"{}\", must be a format of docs/schemes.md", options.scheme);
  check_scale("--static-scale", options.static_scale);
  check_scale("--global-scale", options.global_scale);
  const Format format{*scheme, scale_layout_from_name(options.scale_layout).value(),
                      options.pack_ue8m0};
  require(!format.packs || (format.has_scales() && scheme->scale_format == ScaleFormat::kE8M0),
          Errc::kInvalidArgument,
          "quantize: --pack-ue8m0 requires scales that are exponent bytes, {} has others",
          options.scheme);
  const bool has_rows = format.has_scales() && !format.is_tensor();
  require(format.layout == ScaleLayout::kRowMajor || has_rows, Errc::kInvalidArgument,
          "quantize: --scale-layout is {}, but {} has no scales for each row", options.scale_layout,
          options.scheme);
  require(format.layout != ScaleLayout::kSwizzled ||
              (has_rows && bits_of(format.stored_scale_dtype()) == 8),
          Errc::kInvalidArgument,
          "quantize: --scale-layout is swizzled, which requires scales of one byte, {} has {}",
          options.scheme, has_rows ? name_of(format.stored_scale_dtype()) : "none");
  require(!options.static_scale || format.is_tensor(), Errc::kInvalidArgument,
          "quantize: --static-scale is for schemes with one scale per tensor, not {}",
          options.scheme);
  require(!options.global_scale || scheme->needs_tensor_scale(), Errc::kInvalidArgument,
          "quantize: --global-scale is for nvfp4, not {}", options.scheme);
  return format;
}

// ---- dequantize --------------------------------------------------------------------------------

const std::string& metadata_of(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  require(found != file.metadata().end(), Errc::kMalformedFile,
          "{}: no metadata {}, must be a file that switchyard quantize wrote", file.path(), key);
  return found->second;
}

Format format_in(const SafetensorsFile& file) {
  const std::string& scheme_name = metadata_of(file, kSchemeKey);
  const std::string& layout_name = metadata_of(file, kLayoutKey);
  const std::string& packs = metadata_of(file, kPackedKey);
  const auto scheme = scheme_from_name(scheme_name);
  const auto layout = scale_layout_from_name(layout_name);
  require(scheme && scheme->is_quantized() && layout && (packs == "true" || packs == "false"),
          Errc::kMalformedFile, "{}: metadata has scheme \"{}\", scales \"{}\", packed \"{}\"",
          file.path(), scheme_name, layout_name, packs);
  return {*scheme, *layout, packs == "true"};
}

// Returns the names of the quantized matrices with their original dtypes.
std::map<std::string, DType> quantized_in(const SafetensorsFile& file) {
  const auto json = nlohmann::json::parse(metadata_of(file, kTensorsKey), nullptr, false);
  require(json.is_object(), Errc::kMalformedFile, "{}: metadata {} is not a JSON object",
          file.path(), kTensorsKey);
  std::map<std::string, DType> result;
  for (const auto& [name, value] : json.items()) {
    const std::string was = value.is_string() ? value.get<std::string>() : value.dump();
    const DType dtype = dtype_from_name(was).value_or(DType::kU8);
    require(is_float(dtype), Errc::kMalformedFile,
            "{}: metadata {} says that {} was {}, must be bf16, f16 or f32", file.path(),
            kTensorsKey, name, was);
    result[name] = dtype;
  }
  return result;
}

// Returns the scales in row-major order, as dequantize expects them.
TensorView scale_rows(const SafetensorsFile& file, const Format& format, const std::string& name,
                      std::int64_t num_rows, std::int64_t hidden, Output& output) {
  const TensorView stored = file.tensor(name);
  const bool is_tensor = format.is_tensor();
  const std::int64_t num = is_tensor ? 1 : format.scales_of_row(hidden);
  const TensorView wanted = is_tensor ? TensorView(stored.data(), format.stored_scale_dtype(), {1})
                                      : stored_view(format, stored.data(), num_rows, num);
  require(stored.describe() == wanted.describe(), Errc::kMalformedFile, "{}: {} is {}, must be {}",
          file.path(), name, stored.describe(), wanted.describe());
  if (is_tensor) return stored;
  const TensorView view = view_scales(stored.data(), stored.dtype(), format.layout, num_rows, num);
  if (format.packs) {
    const Tensor& rows = output.own(
        Tensor(scale_dtype(format.scheme), {num_rows, num_scales(format.scheme, hidden)}));
    unpack_ue8m0(view, rows);
    return rows;
  }
  if (format.layout != ScaleLayout::kSwizzled) return view;
  return output.own(unswizzle_scales(view, num_rows, num));
}

void dequantize_tensor(const SafetensorsFile& file, const Format& format, const std::string& name,
                       DType dtype, Output& output) {
  const QuantScheme& scheme = format.scheme;
  const TensorView stored = file.tensor(name);
  const bool is_pair = scheme.dtype == DType::kE2M1;
  const bool is_dtype = scheme.is_simulated()
                            ? is_float(stored.dtype())
                            : stored.dtype() == (is_pair ? DType::kU8 : scheme.dtype);
  require(is_dtype && stored.num_dims() == 2, Errc::kMalformedFile,
          "{}: {} is {}, must be a matrix quantized to {}", file.path(), name, stored.describe(),
          switchyard::name_of(scheme));
  const std::int64_t num_rows = stored.shape(0);
  const std::int64_t hidden =
      is_pair ? checked_mul<std::int64_t>(stored.shape(1), 2) : stored.shape(1);
  const Tensor& y = output.own(Tensor(dtype, {num_rows, hidden}));
  output.add(name, y);
  if (y.view().num_elements() == 0) return;
  if (scheme.is_simulated()) {
    for (std::int64_t i = 0; i < stored.num_elements(); ++i) {
      scalar::store(y.data(), dtype, i, scalar::load(stored.data(), stored.dtype(), i));
    }
    return;
  }
  TensorView global;
  if (scheme.needs_tensor_scale()) {
    global = file.tensor(name + ".global_scale");
    require(global.dtype() == DType::kF32 && global.num_elements() == 1, Errc::kMalformedFile,
            "{}: {}.global_scale is {}, must be f32 [1]", file.path(), name, global.describe());
  }
  const TensorView q(stored.data(), scheme.dtype, {num_rows, hidden});
  switchyard::dequantize(q, scale_rows(file, format, name + ".scale", num_rows, hidden, output),
                         scheme, y, Stream::host(), global);
}

std::int64_t bytes_in(const SafetensorsFile& file) {
  std::int64_t bytes = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    bytes += static_cast<std::int64_t>(entry.end - entry.begin);
  }
  return bytes;
}

}  // namespace

QuantizeSummary quantize_file(const QuantizeOptions& options) {
  const Format format = format_of(options);
  const auto file = SafetensorsFile::open(options.input);
  require(!file->metadata().contains(kSchemeKey), Errc::kInvalidArgument,
          "quantize: {} is quantized already; give --dequantize first", options.input);
  QuantizeSummary summary{options.scheme, 0, 0, bytes_in(*file), 0};
  Output output;
  nlohmann::json converted = nlohmann::json::object();
  for (const SafetensorsEntry& entry : file->entries()) {
    if (!is_quantized_by(options, entry)) {
      output.add_copy(file->stored(entry));
      ++summary.num_copied;
      continue;
    }
    const TensorView x = file->tensor(entry.name);
    quantize_tensor(options, format, entry.name, x, output);
    converted[entry.name] = switchyard::name_of(x.dtype());
    ++summary.num_converted;
  }
  require(summary.num_converted > 0, Errc::kInvalidArgument,
          "quantize: {} has no matrix of bf16, f16 or f32 with elements that --names \"{}\" fits",
          options.input, options.names);
  std::map<std::string, std::string> metadata = file->metadata();
  metadata[kSchemeKey] = options.scheme;
  metadata[kLayoutKey] = options.scale_layout;
  metadata[kPackedKey] = options.pack_ue8m0 ? "true" : "false";
  metadata[kTensorsKey] = converted.dump();
  output.write(options.output, metadata);
  summary.output_bytes = output.num_bytes();
  return summary;
}

QuantizeSummary dequantize_file(const QuantizeOptions& options) {
  const auto file = SafetensorsFile::open(options.input);
  const Format format = format_in(*file);
  const std::map<std::string, DType> quantized = quantized_in(*file);
  std::set<std::string> scales;
  QuantizeSummary summary{metadata_of(*file, kSchemeKey), 0, 0, bytes_in(*file), 0};
  Output output;
  for (const auto& [name, was] : quantized) {
    const DType dtype = options.dtype.empty() ? was : dtype_from_name(options.dtype).value();
    dequantize_tensor(*file, format, name, dtype, output);
    ++summary.num_converted;
    if (format.has_scales()) scales.insert(name + ".scale");
    if (format.scheme.needs_tensor_scale()) scales.insert(name + ".global_scale");
  }
  for (const SafetensorsEntry& entry : file->entries()) {
    if (quantized.contains(entry.name) || scales.contains(entry.name)) continue;
    output.add_copy(file->stored(entry));
    ++summary.num_copied;
  }
  std::map<std::string, std::string> metadata = file->metadata();
  for (const char* key : {kSchemeKey, kLayoutKey, kPackedKey, kTensorsKey}) metadata.erase(key);
  output.write(options.output, metadata);
  summary.output_bytes = output.num_bytes();
  return summary;
}

}  // namespace switchyard::cli
