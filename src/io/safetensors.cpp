// SPDX-License-Identifier: Apache-2.0

#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/fail.h"
#include "core/text.h"
#include "io/file.h"

namespace switchyard {

SafetensorsFile::SafetensorsFile(std::string path, std::shared_ptr<const void> owner,
                                 std::span<const std::byte> bytes)
    : path_(std::move(path)),
      owner_(std::move(owner)),
      bytes_(bytes),
      header_(parse_safetensors_header(bytes_, path_)) {}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto mapping = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes = mapping->bytes();
  return std::shared_ptr<const SafetensorsFile>(
      new SafetensorsFile(path, std::move(mapping), bytes));
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::from_bytes(std::vector<std::byte> bytes,
                                                                   const std::string& name) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> view(*owner);
  return std::shared_ptr<const SafetensorsFile>(new SafetensorsFile(name, std::move(owner), view));
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> result;
  result.reserve(header_.entries.size());
  for (const SafetensorsEntry& entry : header_.entries) result.push_back(entry.name);
  return result;
}

StoredTensor SafetensorsFile::stored(const SafetensorsEntry& entry) const {
  return {entry.name, entry.dtype_name, entry.shape,
          bytes_.subspan(entry.begin, entry.end - entry.begin)};
}

const SafetensorsEntry* SafetensorsFile::find_entry(std::string_view name) const noexcept {
  const auto found = std::lower_bound(
      header_.entries.begin(), header_.entries.end(), name,
      [](const SafetensorsEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return found != header_.entries.end() && found->name == name ? &*found : nullptr;
}

std::optional<TensorView> SafetensorsFile::find(std::string_view name) const {
  const SafetensorsEntry* entry = find_entry(name);
  if (entry == nullptr) return std::nullopt;
  if (!entry->dtype.has_value()) {
    fail(Errc::kNotSupported, "safetensors: tensor {} of {} has the dtype {}", quote(name), path_,
         entry->dtype_name);
  }
  if (entry->shape.size() > kMaxDims) {
    fail(Errc::kNotSupported,
         "safetensors: tensor {} of {} has {} dimensions, must have at most {}", quote(name), path_,
         entry->shape.size(), kMaxDims);
  }
  return TensorView(aligned_data(*entry), *entry->dtype, entry->shape);
}

TensorView SafetensorsFile::tensor(std::string_view name) const {
  if (const std::optional<TensorView> found = find(name)) return *found;
  std::vector<std::string_view> all;
  for (const SafetensorsEntry& entry : header_.entries) all.emplace_back(entry.name);
  fail(Errc::kMalformedFile, "safetensors: {} has no tensor {}{}", path_, quote(name),
       nearest_names(name, all));
}

const std::byte* SafetensorsFile::aligned_data(const SafetensorsEntry& entry) const {
  const std::byte* data = bytes_.data() + entry.begin;
  const int bits = bits_of(*entry.dtype);
  const std::uintptr_t element_bytes = bits < 8 ? 1 : static_cast<std::uintptr_t>(bits / 8);
  if (reinterpret_cast<std::uintptr_t>(data) % element_bytes == 0) return data;

  const std::lock_guard lock(copies_mutex_);
  AlignedBuffer& copy = copies_[&entry];
  if (copy.data() == nullptr) {
    copy = AlignedBuffer(entry.end - entry.begin);
    std::memcpy(copy.data(), data, entry.end - entry.begin);
  }
  return copy.data();
}

}  // namespace switchyard
