// SPDX-License-Identifier: Apache-2.0

#include "fuzz/entries.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/error.h"

#include "io/checkpoint.h"
#include "io/model_config.h"
#include "io/safetensors.h"

namespace switchyard::fuzz {
namespace {

void check(bool promise) {
  if (!promise) std::abort();
}

// Bad files raise one of these two codes; any other is a bug in the reader.
template <typename Read>
void only_file_errors(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    check(error.code() == Errc::kMalformedFile || error.code() == Errc::kNotSupported);
    check(std::string_view(error.what()).size() < 4096);
  }
}

std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Touches both ends of a tensor, so that an address sanitizer detects a view that is out of bounds.
void read_ends(const TensorView& view) {
  const std::size_t num_bytes = view.num_bytes();
  if (num_bytes == 0) return;
  volatile std::uint8_t sink = view.as<const std::uint8_t>()[0];
  sink = view.as<const std::uint8_t>()[num_bytes - 1];
  (void)sink;
}

}  // namespace

void safetensors(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  only_file_errors([&] {
    const auto file = SafetensorsFile::from_bytes({bytes, bytes + size}, "input");
    std::uint64_t covered = 0;
    for (const SafetensorsEntry& entry : file->entries()) {
      check(entry.begin >= 8 && entry.begin <= entry.end && entry.end <= size);
      covered += entry.end - entry.begin;
      check(file->find_entry(entry.name) == &entry);
      only_file_errors([&] {
        const TensorView view = file->tensor(entry.name);
        check(view.num_bytes() == entry.end - entry.begin);
        read_ends(view);
      });
    }
    check(covered <= size);
    only_file_errors([&] { (void)file->tensor("no such tensor"); });
  });
}

void model_config(const std::uint8_t* data, std::size_t size) {
  only_file_errors([&] {
    const ModelConfig config = parse_model_config(text_of(data, size), "input");
    check(config.hidden > 0 && config.moe_intermediate > 0 && config.shared_intermediate >= 0);
    check(config.num_topk() > 0 && config.num_topk() <= config.num_experts());
    check(config.num_experts() % config.router.num_groups == 0);
    check(config.router.routed_scaling_factor > 0);
    check(!config.moe_layers.empty());
    for (const std::int32_t layer : config.moe_layers) {
      check(layer >= 0 && layer < config.num_layers && config.is_moe_layer(layer));
    }
  });
}

void index(const std::uint8_t* data, std::size_t size) {
  only_file_errors([&] {
    const CheckpointIndex index = parse_checkpoint_index(text_of(data, size), "input");
    for (const std::string& file : index.files) {
      check(!file.empty() && file.front() != '/');
      check(("/" + file + "/").find("/../") == std::string::npos);
    }
    for (const auto& [name, file] : index.file_of) check(file < index.files.size());
  });
}

}  // namespace switchyard::fuzz
