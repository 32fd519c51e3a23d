// SPDX-License-Identifier: Apache-2.0
//
// checkpoint.h: a folder of safetensors files as one set of named tensors. A file is opened when
// one of its tensors is first requested, so a rank touches only the files with its own experts.
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
  std::vector<std::string> files;                           ///< inside the folder, no ".."
  std::map<std::string, std::size_t, std::less<>> file_of;  ///< tensor name to index of its file
};

/// Parses the text of an index; messages name `file`.
///
/// Errors: kMalformedFile (not JSON, no weight_map, a file name that leaves the folder or is not
/// *.safetensors).
CheckpointIndex parse_checkpoint_index(std::string_view text, const std::string& file);

/// Every member may be called from any thread. Views stay valid as long as the checkpoint exists.
class Checkpoint {
 public:
  /// `path` is a *.safetensors file, or a folder that holds model.safetensors, or
  /// model.safetensors.index.json with its shards, or exactly one other *.safetensors file, where
  /// activations.safetensors, the input of `switchyard run`, does not count.
  ///
  /// Errors: kSystem, kMalformedFile; kInvalidArgument when the folder holds none of these.
  explicit Checkpoint(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  std::vector<std::string> names() const;
  /// Opens no file.
  bool contains(std::string_view name) const { return index_.file_of.contains(name); }
  /// The file that holds a tensor, for messages. Errors: kMalformedFile when no file does.
  std::string file_of(std::string_view name) const;

  /// The file that is the whole checkpoint; null where an index names several.
  const SafetensorsFile* single_file() const noexcept;

  /// nullopt when there is no such tensor. Errors: kNotSupported (dtype, number of dimensions);
  /// kMalformedFile, also when the index names a file that is missing or lacks the tensor; kSystem.
  std::optional<TensorView> find(std::string_view name) const;
  /// Errors: those of `find`; kMalformedFile, with the nearest names, when the tensor is missing.
  TensorView tensor(std::string_view name) const;

 private:
  void open_single(const std::string& file);
  const SafetensorsFile& open_file(std::size_t file) const;
  [[noreturn]] void fail_missing(std::string_view name) const;

  std::string path_;
  std::string folder_;
  bool is_single_ = false;
  CheckpointIndex index_;
  mutable std::mutex files_mutex_;
  mutable std::vector<std::shared_ptr<const SafetensorsFile>> files_;
};

}  // namespace switchyard
