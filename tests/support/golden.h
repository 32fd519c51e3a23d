// SPDX-License-Identifier: Apache-2.0
//
// golden.h: the vectors of tests/golden/vectors, which a Python script computed from the formulas
// of the originals. A test that takes a vector marks it; none may remain at the end.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "switchyard/tensor.h"

#include "io/safetensors.h"

namespace switchyard::test {

class Golden {
 public:
  /// One file, for example "quantize". A copy of the tree may stand elsewhere than where the
  /// program was built: then the folder is looked for below the working directory.
  explicit Golden(const std::string& name) {
    const std::string folder =
        std::filesystem::exists(SWITCHYARD_GOLDEN_DIR) ? SWITCHYARD_GOLDEN_DIR : "tests/golden";
    file_ = SafetensorsFile::open(folder + "/vectors/" + name + ".safetensors");
  }

  bool has(const std::string& name) const { return file_->find_entry(name) != nullptr; }
  TensorView operator()(const std::string& name) const {
    taken_.insert(name);
    return file_->tensor(name);
  }

  /// Every vector of the file has been compared or used.
  void expect_all_taken() const {
    for (const std::string& name : file_->names()) {
      EXPECT_TRUE(taken_.contains(name)) << "no test takes " << name;
    }
  }

 private:
  std::shared_ptr<const SafetensorsFile> file_;
  mutable std::set<std::string> taken_;
};

/// The bytes of a contiguous tensor, on either device, are those of a vector.
inline void expect_bytes(const std::string& what, const TensorView& got, const TensorView& want) {
  const Tensor copy = copy_to(got, Device::cpu());
  ASSERT_EQ(got.num_bytes(), want.num_bytes()) << what;
  const auto* g = copy.as<const unsigned char>();
  const auto* w = want.as<const unsigned char>();
  std::size_t num_wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = want.num_bytes(); i-- > 0;) {
    if (g[i] == w[i]) continue;
    ++num_wrong;
    first = i;
  }
  EXPECT_EQ(num_wrong, 0u) << what << ": the first of " << want.num_bytes() << " bytes is byte "
                           << first << ", " << static_cast<int>(g[first]) << " instead of "
                           << static_cast<int>(w[first]);
}

}  // namespace switchyard::test
