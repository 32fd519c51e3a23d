// SPDX-License-Identifier: Apache-2.0
//
// machine_files.h: the files of instruments/forecast/machines, as texts in the program.
#pragma once

#include <span>
#include <string_view>

namespace switchyard::forecast {

struct EmbeddedFile {
  std::string_view name;  ///< without folder and .json
  std::string_view text;
};

std::span<const EmbeddedFile> machine_files();

}  // namespace switchyard::forecast
