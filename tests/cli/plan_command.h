// SPDX-License-Identifier: Apache-2.0
//
// plan_command.h: `switchyard plan` as a user runs it.
#pragma once

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "support/command.h"

namespace switchyard::test {

inline CommandResult plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SWITCHYARD_CLI, "plan"});
  return run_command(arguments);
}

inline nlohmann::json json_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--json", "-"});
  const CommandResult result = plan(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  return nlohmann::json::parse(result.output);
}

inline std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void expect_refused(std::vector<std::string> arguments, const std::string& words) {
  const CommandResult result = plan(std::move(arguments));
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
  EXPECT_THAT(result.error,
              ::testing::AllOf(::testing::StartsWith("switchyard: "), ::testing::HasSubstr(words)));
}

}  // namespace switchyard::test
