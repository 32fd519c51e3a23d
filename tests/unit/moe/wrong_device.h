// SPDX-License-Identifier: Apache-2.0
//
// wrong_device.h: tensors said to lie on a GPU, at an address that nobody may read, for calls that
// work on the host: each must refuse them before it touches memory, and name both devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/tensor.h"

#include "support/ranks.h"

namespace switchyard::test {

/// The same shape on cuda:0.
inline TensorView far(const TensorView& near) {
  std::vector<std::int64_t> shape;
  for (int dim = 0; dim < near.num_dims(); ++dim) shape.push_back(near.shape(dim));
  return TensorView(reinterpret_cast<const void*>(std::uintptr_t{4096}), near.dtype(), shape,
                    Device::cuda(0));
}

/// Calls with each of the arguments far in turn; with all of them near the call works.
inline void expect_refused(const std::string& function, std::vector<TensorView> near,
                           const std::function<void(const std::vector<TensorView>&)>& call) {
  SCOPED_TRACE(function);
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  for (std::size_t i = 0; i < near.size(); ++i) {
    std::vector<TensorView> args = near;
    args[i] = far(near[i]);
    const Error error = error_of([&] { call(args); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(function), HasSubstr(" on cuda:0"), HasSubstr("must lie on cpu")))
        << "argument " << i;
  }
  ASSERT_NO_THROW(call(near));
}

inline constexpr std::int64_t kHidden = 128;
using Args = std::vector<TensorView>;

inline Tensor f32(std::initializer_list<std::int64_t> shape, float value = 1.0f) {
  Tensor tensor(DType::kF32, shape);
  std::fill_n(tensor.as<float>(), tensor.view().num_elements(), value);
  return tensor;
}

}  // namespace switchyard::test
