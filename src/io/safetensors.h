// SPDX-License-Identifier: Apache-2.0
//
// safetensors.h: reader and writer of the safetensors format: 8 bytes of header length, a JSON
// header, then the tensors' bytes. The reader trusts nothing: it maps the file, checks the header
// against the file's size, and only then hands out views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/tensor.h"

#include "core/aligned_buffer.h"

namespace switchyard {

/// One tensor of a header, already checked against the file's size.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;           ///< as in the file, for example "BF16"
  std::optional<DType> dtype;       ///< absent for a dtype that this library does not compute with
  std::vector<std::int64_t> shape;  ///< product of sizes and bits fits in 64 bits
  std::uint64_t begin = 0;          ///< byte offset from the start of the file
  std::uint64_t end = 0;
};

/// A tensor as a file stores it, also of a dtype or shape that this library does not support.
struct StoredTensor {
  std::string name;
  std::string dtype_name;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< sorted by name
  std::map<std::string, std::string> metadata;
};

/// Parses and checks the header of a file image. `bytes` holds the whole file, but only the header
/// is read. Messages name `file`.
///
/// Like the reference reader (huggingface/safetensors, Metadata::validate), requires that tensors
/// cover the data without holes or overlaps, that sizes match shape and dtype, and that the header
/// has at most 100 MB. Stricter: rejects duplicate names, unknown dtypes and unknown fields.
/// Errors: kMalformedFile.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           const std::string& file);

/// A mapped file. Views stay valid as long as it does; members may be called from any thread.
class SafetensorsFile {
 public:
  /// Errors: those of MappedFile, kMalformedFile.
  static std::shared_ptr<const SafetensorsFile> open(const std::string& path);
  /// Takes ownership of a file image in memory; messages use `name`. Errors: kMalformedFile.
  static std::shared_ptr<const SafetensorsFile> from_bytes(std::vector<std::byte> bytes,
                                                           const std::string& name);

  const std::string& path() const noexcept { return path_; }
  std::span<const SafetensorsEntry> entries() const noexcept { return header_.entries; }
  std::vector<std::string> names() const;
  const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }

  /// `entry` is one of entries().
  StoredTensor stored(const SafetensorsEntry& entry) const;
  const SafetensorsEntry* find_entry(std::string_view name) const noexcept;

  /// nullopt when the file has no such tensor. A tensor that is not aligned to its element size is
  /// copied once, so that views can always be read through typed pointers.
  ///
  /// Errors: kNotSupported for a dtype or number of dimensions that this library does not support.
  std::optional<TensorView> find(std::string_view name) const;

  /// Errors: those of `find`; kMalformedFile, with the nearest names, when the tensor is missing.
  TensorView tensor(std::string_view name) const;

 private:
  SafetensorsFile(std::string path, std::shared_ptr<const void> owner,
                  std::span<const std::byte> bytes);
  const std::byte* aligned_data(const SafetensorsEntry& entry) const;

  std::string path_;
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  SafetensorsHeader header_;
  mutable std::mutex copies_mutex_;
  mutable std::map<const SafetensorsEntry*, AlignedBuffer> copies_;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;  ///< contiguous
};

/// Writes a file that the reference reader accepts. The file appears whole or not at all, see
/// output_file.h. Tensors are ordered by descending element size, then by name, so that each one is
/// aligned. `copied` are tensors of other files, of any dtype.
///
/// Errors: kInvalidArgument (duplicate name, the name "__metadata__", text that is not UTF-8, a
/// tensor that is absent or not contiguous, packed elements that do not fill bytes; those of
/// OutputFile), kSystem.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       std::span<const StoredTensor> copied = {});

/// The format's name for a dtype, for example "F8_E4M3".
const char* safetensors_name_of(DType dtype) noexcept;
/// Bits of an element; 0 when the format has no such dtype.
std::int64_t safetensors_bits_of(std::string_view dtype_name) noexcept;

}  // namespace switchyard
