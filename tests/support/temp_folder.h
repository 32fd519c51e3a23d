// SPDX-License-Identifier: Apache-2.0
//
// temp_folder.h: a fresh folder that disappears with the test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace switchyard::test {

class TempFolder {
 public:
  TempFolder() {
    path_ = (std::filesystem::temp_directory_path() / "switchyard-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp " + path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const noexcept { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

  /// Writes a file and returns its path.
  std::string write(std::string_view name, std::string_view text) const {
    std::ofstream out(file(name), std::ios::binary);
    out << text;
    if (!out.flush()) throw std::runtime_error("write " + file(name));
    return file(name);
  }

 private:
  std::string path_;
};

}  // namespace switchyard::test
