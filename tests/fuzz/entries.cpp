// SPDX-License-Identifier: Apache-2.0
//
// Files: safetensors, model configs, indices of checkpoints, recorded routing.

#include "fuzz/entries.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fuzz/promises.h"
#include "io/checkpoint.h"
#include "io/model_config.h"
#include "io/safetensors.h"
#include "measure/routing_pattern.h"
#include "transport/socket.h"

namespace switchyard::fuzz {
namespace {

template <typename Read>
void only_file_errors(Read&& read) {
  only_errors({Errc::kMalformedFile, Errc::kNotSupported}, read);
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

// Two bytes are the workload's sizes; the next says whether the rest is text or a trace.
void routing(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return;
  const std::int32_t num_experts = 1 + data[0] % 64;
  const std::int32_t num_topk = 1 + data[1] % std::min(8, num_experts);
  const std::string_view rest = text_of(data + 3, size - 3);
  std::string text(rest);
  const Fd file(memfd_create("fuzz", MFD_CLOEXEC));
  if (data[2] % 2 == 0) {
    check(write(file.get(), rest.data(), rest.size()) == static_cast<ssize_t>(rest.size()));
    text = "trace:/proc/self/fd/" + std::to_string(file.get());
  } else if (rest.starts_with("trace:")) {
    return;  // no file of this machine
  }
  only_errors({Errc::kMalformedFile, Errc::kNotSupported, Errc::kInvalidArgument}, [&] {
    const auto pattern = measure::RoutingPattern::parse(text, num_experts, num_topk);
    for (const std::int64_t iteration : {0, 1, 1'000'000'007}) {
      const std::vector<std::int32_t> ids = pattern.ids(7, iteration, 2, 3, 5);
      check(ids.size() == static_cast<std::size_t>(5 * num_topk));
      for (const std::int32_t id : ids) check(id >= -1 && id < num_experts);
    }
  });
}

}  // namespace switchyard::fuzz
