// SPDX-License-Identifier: Apache-2.0
//
// Reads the header of a safetensors file from parser events, never as a JSON tree. What does not
// belong is rejected where it occurs, so memory stays proportional to the valid tensors, and the
// format itself bounds the nesting.

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/fail.h"
#include "core/text.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the reference reader
constexpr std::size_t kMaxListedDims = 64;

struct FormatDType {
  const char* name;
  std::int64_t bits;
  std::optional<DType> dtype;
};

constexpr std::array<FormatDType, 20> kFormatDTypes{{
    {"F32", 32, DType::kF32},     {"F16", 16, DType::kF16},     {"BF16", 16, DType::kBF16},
    {"F8_E4M3", 8, DType::kE4M3}, {"F8_E5M2", 8, DType::kE5M2}, {"F4", 4, DType::kE2M1},
    {"F6_E2M3", 6, DType::kE2M3}, {"F6_E3M2", 6, DType::kE3M2}, {"F8_E8M0", 8, DType::kE8M0},
    {"I8", 8, DType::kI8},        {"U8", 8, DType::kU8},        {"U16", 16, DType::kU16},
    {"I32", 32, DType::kI32},     {"I64", 64, DType::kI64},     {"BOOL", 8, std::nullopt},
    {"I16", 16, std::nullopt},    {"U32", 32, std::nullopt},    {"U64", 64, std::nullopt},
    {"F64", 64, std::nullopt},    {"C64", 64, std::nullopt},
}};

const FormatDType* find_dtype(std::string_view name) {
  for (const FormatDType& candidate : kFormatDTypes) {
    if (name == candidate.name) return &candidate;
  }
  return nullptr;
}

// Handles the parser's events. Offsets of entries are still relative to the start of the data.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && name_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      place_ = Place::kTensor;
      entry_ = {};
      entry_.name = name_;
      num_offsets_ = 0;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      refuse("an object");
    }
    return true;
  }

  bool key(std::string& text) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(text).second) {
        fail(Errc::kMalformedFile, "safetensors: {} has the tensor {} twice", file_, quote(text));
      }
      name_ = text;
    } else if (place_ == Place::kMetadata) {
      if (header_.metadata.contains(text)) {
        fail(Errc::kMalformedFile, "safetensors: {} has the metadata {} twice", file_, quote(text));
      }
      field_ = text;
    } else {
      field_ = text;
      bool& seen = field_flag();
      if (seen) {
        fail(Errc::kMalformedFile, "safetensors: {}: tensor {} has {} twice", file_, quote(name_),
             field_);
      }
      seen = true;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) {
        fail(Errc::kMalformedFile, "safetensors: {}: tensor {} lacks {}", file_, quote(name_),
             !has_dtype_ ? "dtype" : (!has_shape_ ? "shape" : "data_offsets"));
      }
      header_.entries.push_back(std::move(entry_));
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && field_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && field_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && num_offsets_ != 2) refuse("one offset");
    place_ = Place::kTensor;
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(field_, text);
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") refuse("text");
    const FormatDType* found = find_dtype(text);
    if (found == nullptr) {
      fail(Errc::kMalformedFile, "safetensors: {}: tensor {} has the unknown dtype {}", file_,
           quote(name_), quote(text));
    }
    entry_.dtype_name = found->name;
    entry_.dtype = found->dtype;
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
    if (place_ == Place::kShape && entry_.shape.size() == kMaxListedDims) {
      fail(Errc::kMalformedFile, "safetensors: {}: tensor {} has more than {} dimensions", file_,
           quote(name_), kMaxListedDims);
    }
    if (place_ == Place::kShape && value <= kMax) {
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::kOffsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    } else {
      refuse(fmt::format("number {}", value));
    }
    return true;
  }

  bool number_integer(std::int64_t value) override { refuse(fmt::format("number {}", value)); }
  bool number_float(double, const std::string& text) override { refuse("number " + quote(text)); }
  bool boolean(bool) override { refuse("true or false"); }
  bool binary(json::binary_t&) override { refuse("binary data"); }
  bool null() override {
    if (place_ != Place::kTop || name_ != "__metadata__") refuse("null");
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    fail(Errc::kMalformedFile, "safetensors: the header of {} is not JSON: {}", file_,
         describe_error(error));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool& field_flag() {
    if (field_ == "dtype") return has_dtype_;
    if (field_ == "shape") return has_shape_;
    if (field_ == "data_offsets") return has_offsets_;
    fail(Errc::kMalformedFile, "safetensors: {}: tensor {} has the unknown field {}", file_,
         quote(name_), quote(field_));
  }

  [[noreturn]] void refuse(const std::string& what) const {
    switch (place_) {
      case Place::kMetadata:
        fail(Errc::kMalformedFile, "safetensors: {}: metadata {} holds {}, must hold text", file_,
             quote(field_), what);
      case Place::kTensor:
        fail(Errc::kMalformedFile, "safetensors: {}: {} of tensor {} is {}, must be {}", file_,
             field_, quote(name_), what, field_ == "dtype" ? "text" : "an array");
      case Place::kShape:
        fail(Errc::kMalformedFile,
             "safetensors: {}: shape of tensor {} holds {}, must hold whole numbers from 0 to "
             "2^63-1",
             file_, quote(name_), what);
      case Place::kOffsets:
        fail(Errc::kMalformedFile,
             "safetensors: {}: data_offsets of tensor {} hold {}, must hold two whole numbers from "
             "0",
             file_, quote(name_), what);
      default:
        fail(Errc::kMalformedFile, "safetensors: {}: {} is {}, must be an object", file_,
             place_ == Place::kStart ? "the header" : quote(name_), what);
    }
  }

  const std::string& file_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  Place place_ = Place::kStart;
  std::string name_;   // key in the top-level object
  std::string field_;  // key one level below
  SafetensorsEntry entry_;
  int num_offsets_ = 0;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

// Sizes of 0 count as 1 here, so that strides cannot overflow either.
std::uint64_t checked_bytes(const SafetensorsEntry& entry, const std::string& file) {
  std::int64_t bits = find_dtype(entry.dtype_name)->bits;
  bool overflow = false;
  bool empty = false;
  for (const std::int64_t size : entry.shape) {
    empty = empty || size == 0;
    overflow = overflow || __builtin_mul_overflow(bits, std::max<std::int64_t>(size, 1), &bits);
  }
  if (overflow) {
    fail(Errc::kMalformedFile, "safetensors: {}: shape [{}] of tensor {} overflows 64 bits", file,
         fmt::join(entry.shape, ", "), quote(entry.name));
  }
  if (empty) return 0;
  if (bits % 8 != 0) {
    fail(Errc::kMalformedFile,
         "safetensors: {}: tensor {} is {} [{}], which does not fill whole bytes", file,
         quote(entry.name), entry.dtype_name, fmt::join(entry.shape, ", "));
  }
  return static_cast<std::uint64_t>(bits) / 8;
}

void check_entry(const SafetensorsEntry& entry, std::uint64_t data_bytes, const std::string& file) {
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail(Errc::kMalformedFile,
         "safetensors: {}: tensor {} lies at bytes {} to {} of {} data bytes; is the file "
         "truncated?",
         file, quote(entry.name), entry.begin, entry.end, data_bytes);
  }
  const std::uint64_t want = checked_bytes(entry, file);
  if (entry.end - entry.begin != want) {
    fail(Errc::kMalformedFile, "safetensors: {}: tensor {} has {} bytes, but {} [{}] needs {}",
         file, quote(entry.name), entry.end - entry.begin, entry.dtype_name,
         fmt::join(entry.shape, ", "), want);
  }
}

// Requires that every data byte belongs to exactly one tensor.
void check_coverage(std::span<const SafetensorsEntry> entries, std::uint64_t data_bytes,
                    const std::string& file) {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  std::uint64_t next = 0;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin != next) {
      fail(Errc::kMalformedFile,
           "safetensors: {}: tensor {} begins at data byte {}, must begin at {}: tensors {}", file,
           quote(entry->name), entry->begin, next,
           entry->begin < next ? "overlap" : "leave a hole");
    }
    next = entry->end;
  }
  require(next == data_bytes, Errc::kMalformedFile,
          "safetensors: {} has {} data bytes, but its tensors end at {}", file, data_bytes, next);
}

}  // namespace

const char* safetensors_name_of(DType dtype) noexcept {
  for (const FormatDType& candidate : kFormatDTypes) {
    if (candidate.dtype == dtype) return candidate.name;
  }
  return "unknown";
}

std::int64_t safetensors_bits_of(std::string_view dtype_name) noexcept {
  const FormatDType* found = find_dtype(dtype_name);
  return found == nullptr ? 0 : found->bits;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           const std::string& file) {
  require(bytes.size() >= kLengthBytes, Errc::kMalformedFile,
          "safetensors: {} has {} bytes, must have at least 8 for the length of the header", file,
          bytes.size());
  const std::string_view image(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  refuse_lfs_pointer(image, file);
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  require(header_bytes <= kMaxHeaderBytes, Errc::kMalformedFile,
          "safetensors: {} states a header of {} bytes, must be at most {}; is it a "
          "safetensors file?",
          file, header_bytes, kMaxHeaderBytes);
  require(header_bytes <= bytes.size() - kLengthBytes, Errc::kMalformedFile,
          "safetensors: {} states a header of {} bytes, but has {} after the length", file,
          header_bytes, bytes.size() - kLengthBytes);
  const std::string_view text = image.substr(kLengthBytes, header_bytes);
  require(text.starts_with('{'), Errc::kMalformedFile,
          "safetensors: the header of {} does not begin with '{{'", file);
  // The parser would take a NUL for the end of the text and ignore the rest.
  require(text.find('\0') == std::string_view::npos, Errc::kMalformedFile,
          "safetensors: the header of {} contains a NUL byte", file);

  HeaderReader reader(file);
  json::sax_parse(text.begin(), text.end(), &reader);
  SafetensorsHeader header = reader.take();
  const std::uint64_t data_start = kLengthBytes + header_bytes;
  const std::uint64_t data_bytes = bytes.size() - data_start;
  for (const SafetensorsEntry& entry : header.entries) check_entry(entry, data_bytes, file);
  check_coverage(header.entries, data_bytes, file);
  for (SafetensorsEntry& entry : header.entries) {
    entry.begin += data_start;
    entry.end += data_start;
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return header;
}

}  // namespace switchyard
