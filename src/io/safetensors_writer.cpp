// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <set>

#include <nlohmann/json.hpp>

#include "core/bytes.h"
#include "core/fail.h"
#include "core/text.h"
#include "io/json.h"
#include "io/output_file.h"
#include "io/safetensors.h"

namespace switchyard {
namespace {

void check_tensor(const NamedTensor& named) {
  const TensorView& tensor = named.tensor;
  require(named.name != "__metadata__", Errc::kInvalidArgument,
          "write_safetensors: a tensor is named __metadata__, which the format reserves");
  require(tensor.has_value() && tensor.is_contiguous(), Errc::kInvalidArgument,
          "write_safetensors: tensor {} is {}, must be a contiguous one", quote(named.name),
          tensor.describe());
  require(tensor.num_elements() * bits_of(tensor.dtype()) % 8 == 0, Errc::kInvalidArgument,
          "write_safetensors: tensor {} is {}, whose packed elements do not fill whole bytes",
          quote(named.name), tensor.describe());
}

StoredTensor stored_form(const NamedTensor& named) {
  check_tensor(named);
  const TensorView& tensor = named.tensor;
  StoredTensor stored{named.name, safetensors_name_of(tensor.dtype()), {}, {}};
  for (int dim = 0; dim < tensor.num_dims(); ++dim) stored.shape.push_back(tensor.shape(dim));
  stored.bytes = {static_cast<const std::byte*>(tensor.data()), tensor.num_bytes()};
  return stored;
}

// Largest elements first, so that each tensor begins at a multiple of its element size.
std::vector<StoredTensor> file_order(std::span<const NamedTensor> tensors,
                                     std::span<const StoredTensor> copied) {
  std::vector<StoredTensor> order(copied.begin(), copied.end());
  for (const NamedTensor& named : tensors) order.push_back(stored_form(named));
  std::sort(order.begin(), order.end(), [](const StoredTensor& a, const StoredTensor& b) {
    const std::int64_t bits_a = safetensors_bits_of(a.dtype_name);
    const std::int64_t bits_b = safetensors_bits_of(b.dtype_name);
    return bits_a != bits_b ? bits_a > bits_b : a.name < b.name;
  });
  std::set<std::string_view> names;
  for (const StoredTensor& tensor : order) {
    require(names.insert(tensor.name).second, Errc::kInvalidArgument,
            "write_safetensors: tensor {} is given twice", quote(tensor.name));
  }
  return order;
}

std::string make_header(std::span<const StoredTensor> order,
                        const std::map<std::string, std::string>& metadata) {
  try {
    std::string text = "{";
    if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
    std::size_t offset = 0;
    for (const StoredTensor& tensor : order) {
      const std::size_t end = offset + tensor.bytes.size();
      text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          text.size() > 1 ? "," : "", nlohmann::json(tensor.name).dump(),
                          tensor.dtype_name, fmt::join(tensor.shape, ","), offset, end);
      offset = end;
    }
    text += "}";
    text.resize(align_up<std::size_t>(text.size(), 8), ' ');
    return text;
  } catch (const nlohmann::json::exception& error) {
    fail(Errc::kInvalidArgument, "write_safetensors: a name or metadata is not UTF-8: {}",
         describe_error(error));
  }
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata,
                       std::span<const StoredTensor> copied) {
  const std::vector<StoredTensor> order = file_order(tensors, copied);
  const std::string header = make_header(order, metadata);
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  }
  OutputFile file(path);
  file.write(length.data(), length.size());
  file.write(header);
  for (const StoredTensor& tensor : order) file.write(tensor.bytes.data(), tensor.bytes.size());
  file.commit();
}

}  // namespace switchyard
