// SPDX-License-Identifier: Apache-2.0
//
// Devices of views, tensors and streams, and copies that only need CPUs. tests/cuda has those of
// GPUs.

#include "switchyard/device.h"

#include <cstdint>
#include <type_traits>

#include <gmock/gmock.h>

#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "core/require_device.h"
#include "support/elements.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::ElementsAre;

// Never dereferenced: only its device counts.
CUstream_st* const kSomeStream = reinterpret_cast<CUstream_st*>(std::uintptr_t{64});

TEST(DeviceTest, HasTypeIndexAndName) {
  EXPECT_EQ(Device(), Device::cpu());
  EXPECT_TRUE(Device::cpu().is_cpu());
  EXPECT_FALSE(Device::cpu().is_cuda());
  EXPECT_TRUE(Device::cuda(3).is_cuda());
  EXPECT_NE(Device::cuda(3), Device::cuda(2));
  EXPECT_NE(Device::cuda(0), Device::cpu());
  EXPECT_EQ(name_of(Device::cpu()), "cpu");
  EXPECT_EQ(name_of(Device::cuda(3)), "cuda:3");
  // DLPack's numbers.
  EXPECT_EQ(static_cast<int>(DeviceType::kCpu), 1);
  EXPECT_EQ(static_cast<int>(DeviceType::kCuda), 2);
}

TEST(StreamTest, KnowsItsDevice) {
  EXPECT_EQ(Stream::host().device(), Device::cpu());
  EXPECT_EQ(Stream::host().get(), nullptr);
  EXPECT_EQ(Stream::default_of(Device::cpu()), Stream::host());
  EXPECT_EQ(Stream::default_of(Device::cuda(1)).device(), Device::cuda(1));
  EXPECT_NE(Stream::default_of(Device::cuda(1)).get(), nullptr);  // the thread's own
  EXPECT_NE(Stream::default_of(Device::cuda(1)), Stream::host());
  const Stream stream = Stream::cuda(kSomeStream, 2);
  EXPECT_EQ(stream.device(), Device::cuda(2));
  EXPECT_EQ(stream.get(), kSomeStream);
  EXPECT_NE(stream, Stream::default_of(Device::cuda(2)));
  static_assert(!std::is_convertible_v<CUstream_st*, Stream>);
  static_assert(!std::is_default_constructible_v<Stream>);
}

TEST(TensorViewTest, CarriesItsDevice) {
  const float data[6] = {};
  EXPECT_EQ(TensorView().device(), Device::cpu());
  EXPECT_EQ(TensorView::of(data, {2, 3}).device(), Device::cpu());
  const Device device = Device::cuda(1);
  EXPECT_EQ(TensorView::of(data, {2, 3}, device).device(), device);
  EXPECT_EQ(TensorView(data, DType::kF32, {2, 3}, device).describe(), "f32 [2, 3] on cuda:1");
  const TensorView strided(data, DType::kF32, {3, 2}, {1, 3}, device);
  EXPECT_EQ(strided.device(), device);
  EXPECT_THAT(strided.describe(), ::testing::HasSubstr("on cuda:1"));
}

TEST(CopyTest, TensorsAreCopied) {
  const Tensor from(DType::kI32, {2, 3});
  for (int i = 0; i < 6; ++i) from.as<std::int32_t>()[i] = 10 + i;
  const Tensor copies[] = {from.to(Device::cpu()), from.to(Device::cpu(), Stream::host()),
                           copy_to(from, Device::cpu())};
  from.as<std::int32_t>()[0] = 99;
  for (const Tensor& copy : copies) {
    EXPECT_EQ(copy.view().describe(), "i32 [2, 3]");
    EXPECT_NE(copy.data(), from.data());
    EXPECT_THAT(elements<std::int32_t>(copy), ElementsAre(10, 11, 12, 13, 14, 15));
  }
}

TEST(CopyTest, PackedElementsAndNoElements) {
  const std::uint8_t bytes[2] = {0x21, 0x43};
  const Tensor packed = copy_to(TensorView(bytes, DType::kE2M1, {2, 2}), Device::cpu());
  EXPECT_EQ(packed.as<std::uint8_t>()[0], 0x21);
  EXPECT_EQ(packed.as<std::uint8_t>()[1], 0x43);
  const Tensor none = copy_to(TensorView(nullptr, DType::kF32, {0, 4}), Device::cpu());
  EXPECT_EQ(none.view().describe(), "f32 [0, 4]");
}

TEST(CopyTest, WhatCannotBeCopiedIsNamed) {
  const float data[6] = {};
  const TensorView column(data, DType::kF32, {3, 2}, {1, 3});
  constexpr Errc kCode = Errc::kInvalidArgument;
  expect_error(kCode, "copy_to: from is f32 [3, 2] with strides [1, 3], must be contiguous",
               [&] { copy_to(column, Device::cpu()); });
  expect_error(kCode, "from is absent", [&] { copy_to(TensorView(), Device::cpu()); });
  const TensorView rows = TensorView::of(data, {2, 3});
  expect_error(kCode, "the stream is of cuda:0, must be of cpu",
               [&] { copy_to(rows, Device::cpu(), Stream::default_of(Device::cuda(0))); });
  expect_error(kCode, "the stream is of cpu, must be of cuda:1",
               [&] { copy_to(rows, Device::cuda(1), Stream::host()); });
  expect_error(kCode, "the stream is of cuda:0, must be of cuda:1",
               [&] { copy_to(rows, Device::cuda(1), Stream::cuda(kSomeStream, 0)); });
  const TensorView far = TensorView::of(data, {2, 3}, Device::cuda(2));
  expect_error(kCode, "the stream is of cpu, must be of cuda:2",
               [&] { copy_to(far, Device::cpu(), Stream::host()); });
}

// A machine without GPUs answers in words.
TEST(CopyTest, AGpuThatIsNotThereIsAnError) {
  const int none = num_cuda_devices();
  EXPECT_GE(none, 0);
  const float data[2] = {};
  expect_error(Errc::kNotAvailable, "",
               [&] { copy_to(TensorView::of(data, {2}), Device::cuda(none)); });
  expect_error(Errc::kNotAvailable, "", [&] { Tensor(DType::kF32, {2}, Device::cuda(none)); });
}

TEST(RequireDeviceTest, NamesTheTensorAndBothDevices) {
  const float data[2] = {};
  const TensorView far = TensorView::of(data, {2}, Device::cuda(0));
  const TensorView near = TensorView::of(data, {2});
  const TensorView none(nullptr, DType::kF32, {0}, Device::cuda(0));
  require_host("call", {{"a", near}, {"b", TensorView()}, {"c", none}});
  expect_invalid("call: b is f32 [2] on cuda:0, must lie on cpu; copy it there", [&] {
    require_host("call", {{"a", near}, {"b", far}});
  });
  expect_invalid("a is f32 [2] on cpu, must lie on cuda:1", [&] {
    require_device("call", Device::cuda(1), {{"a", near}});
  });
}

}  // namespace
}  // namespace switchyard
