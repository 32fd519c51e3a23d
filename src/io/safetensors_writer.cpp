// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <set>

#include <nlohmann/json.hpp>

#include "core/bytes.h"
#include "core/fail.h"
#include "io/safetensors.h"
#include "io/text.h"

namespace switchyard {
namespace {

void check_tensor(const NamedTensor& named) {
  const TensorView& tensor = named.tensor;
  require(named.name != "__metadata__", Errc::kInvalidArgument,
          "write_safetensors: a tensor is named __metadata__, which the format reserves");
  require(tensor.has_value() && tensor.is_contiguous(), Errc::kInvalidArgument,
          "write_safetensors: tensor {} is {}, want a contiguous one", quote(named.name),
          tensor.describe());
  require(tensor.num_elements() * bits_of(tensor.dtype()) % 8 == 0, Errc::kInvalidArgument,
          "write_safetensors: tensor {} is {}, whose packed elements do not fill whole bytes",
          quote(named.name), tensor.describe());
}

// Largest elements first, so that each tensor begins at a multiple of its element size.
std::vector<const NamedTensor*> file_order(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  std::set<std::string_view> names;
  for (const NamedTensor& named : tensors) {
    check_tensor(named);
    require(names.insert(named.name).second, Errc::kInvalidArgument,
            "write_safetensors: tensor {} is given twice", quote(named.name));
    order.push_back(&named);
  }
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int bits_a = bits_of(a->tensor.dtype());
    const int bits_b = bits_of(b->tensor.dtype());
    return bits_a != bits_b ? bits_a > bits_b : a->name < b->name;
  });
  return order;
}

std::string make_header(std::span<const NamedTensor* const> order,
                        const std::map<std::string, std::string>& metadata) {
  try {
    std::string text = "{";
    if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
    std::size_t offset = 0;
    for (const NamedTensor* named : order) {
      const TensorView& tensor = named->tensor;
      std::vector<std::int64_t> shape;
      for (int dim = 0; dim < tensor.num_dims(); ++dim) shape.push_back(tensor.shape(dim));
      const std::size_t end = offset + tensor.num_bytes();
      text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          text.size() > 1 ? "," : "", nlohmann::json(named->name).dump(),
                          safetensors_name_of(tensor.dtype()), fmt::join(shape, ","), offset, end);
      offset = end;
    }
    text += "}";
    text.resize(align_up<std::size_t>(text.size(), 8), ' ');
    return text;
  } catch (const nlohmann::json::exception& error) {
    fail(Errc::kInvalidArgument, "write_safetensors: a name or metadata is not UTF-8: {}",
         error.what());
  }
}

// A file that is deleted unless it is renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target) {
    static std::atomic<unsigned> counter{0};
    path_ = fmt::format("{}.{}.{}.tmp", target, getpid(), counter.fetch_add(1));
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail_errno("open", path_);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!renamed_) unlink(path_.c_str());
  }

  void write_all(const void* data, std::size_t num_bytes) {
    const auto* next = static_cast<const char*>(data);
    while (num_bytes > 0) {
      const ssize_t done = write(descriptor_, next, num_bytes);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail_errno("write", path_);
      next += done;
      num_bytes -= static_cast<std::size_t>(done);
    }
  }

  void rename_to(const std::string& target) {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (close(descriptor) != 0) fail_errno("close", path_);  // late write errors surface here
    if (std::rename(path_.c_str(), target.c_str()) != 0) fail_errno("rename", target);
    renamed_ = true;
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<const NamedTensor*> order = file_order(tensors);
  const std::string header = make_header(order, metadata);
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  }
  TemporaryFile file(path);
  file.write_all(length.data(), length.size());
  file.write_all(header.data(), header.size());
  for (const NamedTensor* named : order) {
    file.write_all(named->tensor.data(), named->tensor.num_bytes());
  }
  file.rename_to(path);
}

}  // namespace switchyard
