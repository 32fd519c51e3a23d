// SPDX-License-Identifier: Apache-2.0
//
// output_path.h: reports a missing output folder before the work instead of after it.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "core/fail.h"

namespace switchyard::cli {

/// `option` is "verb: --option". Errors: kInvalidArgument.
inline void check_output_folder(const char* option, const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  require(std::filesystem::is_directory(folder, error), Errc::kInvalidArgument,
          "{} is {}, but there is no folder {}", option, path, folder.string());
}

}  // namespace switchyard::cli
