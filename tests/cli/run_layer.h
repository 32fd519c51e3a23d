// SPDX-License-Identifier: Apache-2.0
//
// run_layer.h: runs `switchyard run` on data/tiny-moe or another model and parses its JSON.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/command.h"

namespace switchyard::test {

using Arguments = std::vector<std::string>;

inline CommandResult run(Arguments extra,
                         const std::string& model = SWITCHYARD_DATA_DIR "/tiny-moe") {
  Arguments arguments{SWITCHYARD_CLI, "run", "--model", model};
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  return run_command(arguments);
}

inline nlohmann::json run_json(Arguments extra,
                               const std::string& model = SWITCHYARD_DATA_DIR "/tiny-moe") {
  extra.push_back("--json");
  const CommandResult result = run(std::move(extra), model);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  return nlohmann::json::parse(result.output, nullptr, false);
}

inline std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace switchyard::test
