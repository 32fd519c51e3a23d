// SPDX-License-Identifier: Apache-2.0
//
// checkpoint.h: a folder of safetensors files as one set of named tensors. Files are opened when
// one of their tensors is first asked for, so a rank touches only the files with its own experts.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/tensor.h"

#include "io/safetensors.h"

namespace switchyard {

/// The weight_map of a model.safetensors.index.json.
struct CheckpointIndex {
  std::vector<std::string> files;                           ///< inside the folder, no "..".
  std::map<std::string, std::size_t, std::less<>> file_of;  ///< tensor to index of its file
};

/// The text of an index; `file` goes into messages.
///
/// Errors: kMalformedFile (not JSON, no weight_map, a file name that leaves the folder or is not
/// *.safetensors).
CheckpointIndex parse_checkpoint_index(std::string_view text, const std::string& file);

/// All calls may come from any thread. Views stay valid as long as the checkpoint does.
class Checkpoint {
 public:
  /// `path` is a folder with model.safetensors, with model.safetensors.index.json and its shards,
  /// or with one *.safetensors file; or such a file itself.
  ///
  /// Errors: kSystem, kMalformedFile; kInvalidArgument when there is nothing of the kind.
  explicit Checkpoint(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  std::vector<std::string> names() const;
  /// Opens nothing.
  bool contains(std::string_view name) const { return index_.file_of.contains(name); }
  /// The file that holds a tensor, for messages. Errors: as tensor.
  std::string file_of(std::string_view name) const;

  /// Errors: as SafetensorsFile::find, and kMalformedFile when the index is wrong about a file.
  std::optional<TensorView> find(std::string_view name) const;
  /// Errors: as find; kMalformedFile, with the nearest names, when there is no such tensor.
  TensorView tensor(std::string_view name) const;

 private:
  void open_single(const std::string& file);
  const SafetensorsFile& open_file(std::size_t file) const;
  [[noreturn]] void fail_missing(std::string_view name) const;

  std::string path_;
  std::string folder_;
  CheckpointIndex index_;
  mutable std::mutex files_mutex_;
  mutable std::vector<std::shared_ptr<const SafetensorsFile>> files_;
};

}  // namespace switchyard
