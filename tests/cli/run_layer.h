// SPDX-License-Identifier: Apache-2.0
//
// run_layer.h: runs `switchyard run` on data/tiny-moe or another model and parses its JSON.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/observe.h"
#include "support/temp_folder.h"

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

/// Runs each variant beside the common arguments; all must write the same bytes. Returns the
/// reports.
inline std::vector<nlohmann::json> expect_same_output(const Arguments& common,
                                                      const std::vector<Arguments>& variants) {
  const TempFolder folder;
  const std::string path = folder.file("out.safetensors");
  std::vector<nlohmann::json> reports;
  std::string first;
  for (const Arguments& variant : variants) {
    Arguments arguments = common;
    arguments.insert(arguments.end(), variant.begin(), variant.end());
    arguments.insert(arguments.end(), {"--output", path});
    reports.push_back(run_json(arguments));
    const std::string bytes = read_file(path);
    EXPECT_FALSE(bytes.empty());
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << ::testing::PrintToString(arguments);
  }
  return reports;
}

}  // namespace switchyard::test
