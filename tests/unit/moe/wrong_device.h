// SPDX-License-Identifier: Apache-2.0
//
// wrong_device.h: calls with tensors and streams of another device than theirs, and with tensors at
// a null pointer. Each must refuse them before anything reads them, by a message that names the
// argument, and both devices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/device.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "support/errors.h"

namespace switchyard::test {

using Views = std::vector<TensorView>;
using Call = std::function<void(const Views& v, Stream stream)>;

/// A call with the names of its tensors, in the order in which `call` takes them.
struct Function {
  std::vector<std::string> arguments;
  Call call;
  DType dtype = DType::kF32;
};

inline void PrintTo(const Function& function, std::ostream* out) {
  *out << function.arguments.size();
}

/// Memory of the host under the name of any device: devices are compared before anything is read.
inline TensorView view_on(Device device, DType dtype = DType::kF32) {
  static const Tensor memory(DType::kF32, {4, 4});
  return TensorView(memory.data(), dtype, {4, 4}, device);
}

inline void expect_refused(const std::string& argument, Device wrong, Device right,
                           const std::function<void()>& call) {
  SCOPED_TRACE(argument + " on " + name_of(wrong) + " for " + name_of(right));
  expect_invalid(" on " + name_of(wrong) + ", must lie on " + name_of(right) + "; copy it there",
                 call);
  expect_invalid(": " + argument + " is ", call);
}

inline void expect_stream_refused(Device wrong, Device right, const std::function<void()>& call) {
  SCOPED_TRACE("stream of " + name_of(wrong) + " for " + name_of(right));
  expect_invalid("the stream is of " + name_of(wrong) + ", must be of " + name_of(right), call);
}

/// A tensor with a shape and no memory, as torch has where storage was freed.
inline void expect_null_refused(const std::string& argument, Device right, DType dtype,
                                const std::function<void(const TensorView& null)>& call) {
  SCOPED_TRACE(argument + " at a null pointer for " + name_of(right));
  const TensorView null(nullptr, dtype, {4, 4}, right);
  expect_invalid(" at a null pointer, must have memory", [&] { call(null); });
  expect_invalid(": " + argument + " is ", [&] { call(null); });
}

/// Each argument in turn lies elsewhere or nowhere, then all of them.
inline void expect_every_argument_refused(const Function& function, Device right) {
  const Stream stream = Stream::default_of(right);
  for (std::size_t i = 0; i < function.arguments.size(); ++i) {
    Views views(function.arguments.size(), view_on(right, function.dtype));
    expect_null_refused(function.arguments[i], right, function.dtype, [&](const TensorView& null) {
      views[i] = null;
      function.call(views, stream);
    });
  }
  for (const Device wrong : {Device::cpu(), Device::cuda(0), Device::cuda(1)}) {
    if (wrong == right) continue;
    for (std::size_t i = 0; i < function.arguments.size(); ++i) {
      Views views(function.arguments.size(), view_on(right, function.dtype));
      views[i] = view_on(wrong, function.dtype);
      expect_refused(function.arguments[i], wrong, right, [&] { function.call(views, stream); });
    }
    const Views all(function.arguments.size(), view_on(wrong, function.dtype));
    expect_refused(function.arguments[0], wrong, right, [&] { function.call(all, stream); });
  }
}

}  // namespace switchyard::test
