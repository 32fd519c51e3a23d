// SPDX-License-Identifier: Apache-2.0

#include "common_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/fail.h"
#include "core/settings.h"
#include "device/cuda_module.h"
#include "engine/registry.h"
#include "help.h"
#include "io/output_file.h"

namespace switchyard::cli {
namespace {

constexpr std::int64_t kMaxSeed = std::numeric_limits<std::int64_t>::max();

// CLI::Range takes a number beyond 64 bits for the largest one.
std::string seed_error(const std::string& text) {
  std::int64_t value = -1;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc{} && last == end && value >= 0) return {};
  return fmt::format("{} must be a whole number from 0 to {}", text, kMaxSeed);
}

bool is_own(std::string_view option) {
  constexpr std::array<std::string_view, 6> kOwn{"--json", "--html", "--output",
                                                 "--dump", "--help", "--baseline-file"};
  return std::find(kOwn.begin(), kOwn.end(), option) != kOwn.end();
}

bool is_shared_setting(std::string_view name) {
  constexpr std::array<std::string_view, 4> kShared{"SWITCHYARD_ENGINE", "SWITCHYARD_TIMEOUT_MS",
                                                    "SWITCHYARD_HEAP",
                                                    "SWITCHYARD_ALL2ALL_BACKEND"};
  return std::find(kShared.begin(), kShared.end(), name) != kShared.end();
}

}  // namespace

void add_json(CLI::App* verb, std::string& json) {
  verb->add_option_function<std::string>(
          "--json", [&json](const std::string& file) { json = file.empty() ? "-" : file; },
          "one JSON object into this file; alone, or with -, on stdout and nothing else")
      ->expected(0, 1)
      ->type_name("[FILE]");
}

void add_seed(CLI::App* verb, std::uint64_t& seed, const std::string& help) {
  verb->add_option("--seed", seed, help)
      ->check(CLI::Validator([](const std::string& text) { return seed_error(text); }, ""))
      ->capture_default_str();
}

void add_timeout(CLI::App* verb, std::int64_t& timeout_ms) {
  verb->add_option("--timeout", timeout_ms,
                   "longest wait for a peer in ms; default: SWITCHYARD_TIMEOUT_MS or 30000")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{86'400'000}));
}

void add_messages(CLI::App* verb, bool& are_exact, std::int64_t& host_capacity) {
  verb->add_flag("--exact-messages", are_exact,
                 "cuda, several hosts: messages have the size of the rows that cross; the host "
                 "waits for their number");
  verb->add_option("--host-capacity", host_capacity,
                   "cuda, several hosts: messages have room for this many tokens of a rank; more "
                   "for one host are an error; default: all")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31));
}

void add_engine(CLI::App* verb, std::string& engine) {
  verb->add_option("--engine", engine,
                   "how ranks reach each other: auto, local (threads), shm (processes), mpi (those "
                   "of mpirun, on any hosts); default: SWITCHYARD_ENGINE or auto")
      ->check(one_of(engine_names()));
}

void add_device(CLI::App* verb, std::string& device, const std::string& help) {
  verb->add_option("--device", device, help)->check(one_of({"cpu", "cuda"}))->capture_default_str();
}

void add_experts(CLI::App* verb, std::string& experts, const std::string& what) {
  verb->add_option("--experts", experts,
                   what +
                       ": exact (fixed order, the same bits on every device), onednn (cpu), "
                       "cublas or cutlass (cuda)")
      ->check(one_of({"exact", "onednn", "cublas", "cutlass"}))
      ->capture_default_str();
}

void check_messages(const std::string& verb, bool are_exact, std::int64_t host_capacity,
                    const std::string& device) {
  require(
      device == "cuda" || (!are_exact && host_capacity == 0), Errc::kInvalidArgument,
      "{}: --exact-messages or --host-capacity with --device {}, must be --device cuda: they are "
      "of messages between GPUs",
      verb, device);
}

void check_json(const std::string& verb, const std::string& json) {
  if (!json.empty() && json != "-") check_output_path((verb + ": --json").c_str(), json);
}

void publish(const std::string& json, const std::function<std::string()>& as_text,
             const std::function<std::string()>& as_json) {
  if (!json.empty() && json != "-") write_file(json, as_json());
  std::fputs((json == "-" ? as_json() : as_text()).c_str(), stdout);
}

NamedValues shared_options(const CLI::App& verb) {
  NamedValues values;
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    if (is_own(name)) continue;
    values.emplace_back(name, option->count() == 0
                                  ? "its default"
                                  : fmt::format("{}", fmt::join(option->results(), " ")));
  }
  for (const SettingInfo& info : all_settings()) {
    if (is_shared_setting(info.name)) values.emplace_back(info.name, setting(info.name).text);
  }
  return values;
}

void require_device(const std::string& verb, const std::string& device) {
  if (device == "cpu") return;
  const std::string reason = why_no_cuda();
  require(reason.empty(), Errc::kNotAvailable,
          "{}: --device {}, but CUDA cannot be used: {}; see switchyard doctor", verb, device,
          reason);
}

void require_experts(const std::string& verb, const std::string& experts,
                     const std::string& device) {
  if (experts == "exact") return;
  const char* const wanted = experts == "onednn" ? "cpu" : "cuda";
  require(device == wanted, Errc::kInvalidArgument,
          "{}: --experts {} with --device {}, must be --device {}, or --experts exact", verb,
          experts, device, wanted);
}

// Backtracks to the last * whenever the text after it does not match.
bool matches_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = pattern.npos;
  std::size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

}  // namespace switchyard::cli
