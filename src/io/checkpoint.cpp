// SPDX-License-Identifier: Apache-2.0

#include "io/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <system_error>

#include "core/fail.h"
#include "core/text.h"
#include "io/file.h"
#include "io/json.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kInputName = "activations.safetensors";
constexpr std::size_t kMaxIndexBytes = std::size_t{128} << 20;
constexpr std::size_t kMaxIndexValues = 8'000'000;

// Symbolic links are followed, since the Hugging Face cache consists of them; names must not leave
// the folder.
bool stays_in_folder(std::string_view name) {
  if (name.empty() || name.size() > 1024 || name.front() == '/') return false;
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '\\') return false;
  }
  for (const fs::path& part : fs::path(name)) {
    if (part == ".." || part == "." || part.empty()) return false;
  }
  return name.ends_with(".safetensors");
}

std::vector<std::string> files_in(const std::string& folder,
                                  std::initializer_list<const char*> extensions) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const fs::path extension = it->path().extension();
    if (std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) continue;
    if (it->path().filename() != kInputName) found.push_back(it->path().filename().string());
  }
  if (error) fail(Errc::kSystem, "checkpoint: {}: {}", folder, error.message());
  std::sort(found.begin(), found.end());
  return found;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A file with weights, or the index of such files; empty: there is none. What a trainer keeps
// beside them, for example training_args.bin, comes last.
std::string weights_of_another_format(const std::string& folder) {
  constexpr std::string_view kTorchName = "pytorch_model";
  std::vector<std::string> found = files_in(folder, {".bin", ".pt", ".pth", ".gguf"});
  if (exists(folder + "/pytorch_model.bin.index.json"))
    found.push_back("pytorch_model.bin.index.json");
  const auto named = std::ranges::find_if(
      found, [&](const std::string& name) { return name.starts_with(kTorchName); });
  if (named != found.end()) return *named;
  return found.empty() ? "" : found.front();
}

}  // namespace

CheckpointIndex parse_checkpoint_index(std::string_view text, const std::string& file) {
  const nlohmann::json root = parse_json(text, file, {.max_values = kMaxIndexValues});
  const JsonObject object(root, file, "checkpoint");
  const nlohmann::json& weight_map = object.value("weight_map");
  if (!weight_map.is_object()) object.refuse("weight_map", "an object");
  CheckpointIndex index;
  std::map<std::string, std::size_t, std::less<>> numbers;
  for (const auto& [name, value] : weight_map.items()) {
    if (!value.is_string()) {
      fail(Errc::kMalformedFile, "checkpoint: {}: tensor {} maps to {}, must map to a file name",
           file, quote(name), describe_json(value));
    }
    const auto& shard = value.get_ref<const std::string&>();
    auto known = numbers.find(shard);
    if (known == numbers.end()) {
      if (!stays_in_folder(shard)) {
        fail(Errc::kMalformedFile,
             "checkpoint: {}: tensor {} maps to {}, must map to a *.safetensors file inside the "
             "folder",
             file, quote(name), quote(shard));
      }
      known = numbers.emplace(shard, index.files.size()).first;
      index.files.push_back(shard);
    }
    index.file_of.emplace(name, known->second);
  }
  return index;
}

Checkpoint::Checkpoint(const std::string& path) : path_(path), folder_(path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    fail(Errc::kInvalidArgument, "checkpoint: {}: {}", path,
         error ? error.message() : "no such file or folder");
  }
  if (!fs::is_directory(status)) {
    const fs::path parent = fs::path(path).parent_path();
    folder_ = (parent.empty() ? fs::path(".") : parent).string();
    open_single(fs::path(path).filename().string());
    return;
  }
  const std::string index_file = path + "/" + kIndexName;
  if (exists(path + "/" + kSingleName)) {
    open_single(kSingleName);
  } else if (exists(index_file)) {
    index_ = parse_checkpoint_index(read_text_file(index_file, kMaxIndexBytes), index_file);
    files_.resize(index_.files.size());
  } else {
    const std::vector<std::string> found = files_in(path, {".safetensors"});
    const std::string other = found.empty() ? weights_of_another_format(path) : "";
    require(other.empty(), Errc::kInvalidArgument,
            "checkpoint: {} holds {}, but only *.safetensors files are read; load the model with "
            "transformers and write it with save_pretrained",
            path, other);
    require(found.size() == 1, Errc::kInvalidArgument,
            "checkpoint: {} has neither {} nor {}, and {} other *.safetensors files, must be one",
            path, kSingleName, kIndexName, found.size());
    open_single(found.front());
  }
}

void Checkpoint::open_single(const std::string& file) {
  is_single_ = true;
  files_.push_back(SafetensorsFile::open(folder_ + "/" + file));
  index_.files.push_back(file);
  for (const SafetensorsEntry& entry : files_.front()->entries()) {
    index_.file_of.emplace_hint(index_.file_of.end(), entry.name, 0);
  }
}

const SafetensorsFile& Checkpoint::open_file(std::size_t file) const {
  const std::lock_guard lock(files_mutex_);
  std::shared_ptr<const SafetensorsFile>& opened = files_[file];
  if (opened == nullptr) {
    const std::string path = folder_ + "/" + index_.files[file];
    require(exists(path), Errc::kMalformedFile,
            "checkpoint: {}/{} names the file {}, which does not exist", folder_, kIndexName,
            index_.files[file]);
    opened = SafetensorsFile::open(path);
  }
  return *opened;
}

const SafetensorsFile* Checkpoint::single_file() const noexcept {
  return is_single_ ? files_.front().get() : nullptr;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> result;
  result.reserve(index_.file_of.size());
  for (const auto& [name, file] : index_.file_of) result.push_back(name);
  return result;
}

std::string Checkpoint::file_of(std::string_view name) const {
  const auto found = index_.file_of.find(name);
  if (found == index_.file_of.end()) fail_missing(name);
  return folder_ + "/" + index_.files[found->second];
}

std::optional<TensorView> Checkpoint::find(std::string_view name) const {
  const auto found = index_.file_of.find(name);
  if (found == index_.file_of.end()) return std::nullopt;
  const SafetensorsFile& file = open_file(found->second);
  const std::optional<TensorView> view = file.find(name);
  if (!view.has_value()) {
    fail(Errc::kMalformedFile, "checkpoint: {}/{} places tensor {} into {}, which lacks it",
         folder_, kIndexName, quote(name), file.path());
  }
  return view;
}

TensorView Checkpoint::tensor(std::string_view name) const {
  if (const std::optional<TensorView> found = find(name)) return *found;
  fail_missing(name);
}

void Checkpoint::fail_missing(std::string_view name) const {
  std::vector<std::string_view> all;
  for (const auto& [known, file] : index_.file_of) all.emplace_back(known);
  fail(Errc::kMalformedFile, "checkpoint: {} has no tensor {}{}", path_, quote(name),
       nearest_names(name, all));
}

}  // namespace switchyard
