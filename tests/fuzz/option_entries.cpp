// SPDX-License-Identifier: Apache-2.0
//
// What a user writes: variables of the environment and the options of a command line.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/parallel_config.h"

#include "command.h"
#include "core/settings.h"
#include "engine/group_options.h"
#include "fuzz/entries.h"
#include "fuzz/promises.h"
#include "transport/env.h"

namespace switchyard::fuzz {
namespace {

// A C string ends at its first zero.
std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  for (std::string& line : lines) line = line.c_str();
  return lines;
}

}  // namespace

// Lines NAME=VALUE. Settings of the library stand for those of the environment.
void settings(const std::uint8_t* data, std::size_t size) {
  std::map<std::string, std::string> variables;
  for (const std::string& line : lines_of(text_of(data, size))) {
    const std::size_t equals = line.find('=');
    if (equals != line.npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  only_errors({Errc::kInvalidArgument}, [&] {
    const RankInfo ranks = discover_ranks([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    check(ranks.size >= 1 && ranks.size <= kMaxRanks);
    check(ranks.rank >= 0 && ranks.rank < ranks.size);
    check(!meeting_address(ranks).empty());
  });
  for (const SettingInfo& info : all_settings()) {
    const auto found = variables.find(info.name);
    set_setting(info.name, found == variables.end() ? info.default_text : found->second);
  }
  only_errors({Errc::kInvalidArgument}, [] {
    const std::int64_t timeout_ms = timeout_of({});
    check(timeout_ms >= 1 && timeout_ms <= 86'400'000);
  });
  only_errors({Errc::kInvalidArgument}, [] {
    (void)setting_integer("SWITCHYARD_USE_FLASHINFER_MOE_FP4", 0, 1);
    (void)ParallelConfig::make({.dp_size = 2, .enable_expert_parallel = true});
  });
}

// An argument on each line. Nothing is run.
void options(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string> lines = lines_of(text_of(data, size));
  std::vector<const char*> arguments{"switchyard"};
  for (const std::string& line : lines) arguments.push_back(line.c_str());
  only_errors({Errc::kInvalidArgument}, [&] {
    cli::Command command;
    (void)command.parse(static_cast<int>(arguments.size()), arguments.data());
  });
}

}  // namespace switchyard::fuzz
