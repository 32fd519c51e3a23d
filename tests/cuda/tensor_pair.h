// SPDX-License-Identifier: Apache-2.0
//
// tensor_pair.h: the same bytes on the host and on the GPU, between guards and with the gaps of
// strides. A CPU function works on one copy, a GPU function on the other; then all bytes must be
// equal.
#pragma once

#include <cstring>
#include <cuda_runtime_api.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "core/random.h"
#include "cuda/base/check.h"
#include "gpu.h"

namespace switchyard::test {

/// Strides of a matrix in elements, and its offset from an aligned address.
struct Placement {
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 1;
  std::int64_t offset = 0;
};

class TensorPair {
 public:
  static constexpr std::size_t kGuard = 128;

  TensorPair() = default;

  /// [rows, columns], all bytes poisoned; contiguous unless placed otherwise.
  TensorPair(DType dtype, std::int64_t rows, std::int64_t columns)
      : TensorPair(dtype, rows, columns, {columns, 1, 0}) {}
  TensorPair(DType dtype, std::int64_t rows, std::int64_t columns, const Placement& placement) {
    const std::int64_t bits = bits_of(dtype);
    const std::int64_t last =
        rows == 0 || columns == 0
            ? 0
            : (rows - 1) * placement.row_stride + (columns - 1) * placement.column_stride + 1;
    first_ = kGuard + static_cast<std::size_t>(placement.offset * bits / 8);
    bytes_.assign(first_ + static_cast<std::size_t>((last * bits + 7) / 8) + kGuard, kPoison);
    device_bytes_ = Tensor(DType::kU8, {static_cast<std::int64_t>(bytes_.size())}, kGpu);
    const auto view = [&](std::byte* data, Device where) {
      return TensorView(data + first_, dtype, {rows, columns},
                        {placement.row_stride, placement.column_stride}, where);
    };
    host = view(bytes_.data(), Device::cpu());
    device = view(device_bytes_.as<std::byte>(), kGpu);
    upload();
  }

  static TensorPair flat(DType dtype, std::int64_t count) {
    TensorPair pair(dtype, 1, count);
    pair.host = TensorView(pair.host.data(), dtype, {count});
    pair.device = TensorView(pair.device.data(), dtype, {count}, kGpu);
    return pair;
  }

  /// Any bytes, `misalignment` away from a 16-byte address.
  static TensorPair bytes(std::size_t num_bytes, std::size_t misalignment = 0) {
    const auto columns = static_cast<std::int64_t>(num_bytes);
    return {DType::kU8, 1, columns, {columns, 1, static_cast<std::int64_t>(misalignment)}};
  }

  std::byte* data(Device where) const { return (where.is_cpu() ? host : device).as<std::byte>(); }

  /// Sets every byte between the guards to value(i).
  template <typename Value>
  TensorPair& fill_bytes(const Value& value) {
    for (std::size_t i = first_; i + kGuard < bytes_.size(); ++i) {
      bytes_[i] = static_cast<std::byte>(value(i - first_));
    }
    upload();
    return *this;
  }
  TensorPair& randomize(std::uint64_t seed) {
    return fill_bytes([&](std::size_t i) { return random_bits(seed, i) >> 7 & 0xFF; });
  }

  /// Sets the elements of a matrix to value(row, column).
  template <typename T, typename Value>
  TensorPair& fill(const Value& value) {
    for (std::int64_t r = 0; r < host.shape(0); ++r) {
      for (std::int64_t c = 0; c < host.shape(1); ++c) {
        host.as<T>()[r * host.stride(0) + c * host.stride(1)] = static_cast<T>(value(r, c));
      }
    }
    upload();
    return *this;
  }

  void upload() {
    cuda::check_cuda(
        cudaMemcpy(device_bytes_.data(), bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice),
        "upload");
    // A copy from pageable memory may still be under way, and other streams do not wait for it.
    cuda::check_cuda(cudaStreamSynchronize(nullptr), "upload");
  }

  std::vector<std::byte> download() const {
    std::vector<std::byte> got(bytes_.size());
    cuda::check_cuda(
        cudaMemcpy(got.data(), device_bytes_.data(), got.size(), cudaMemcpyDeviceToHost),
        "download");
    return got;
  }

  /// Compares guards, gaps and elements.
  ::testing::AssertionResult is_equal() const {
    const std::vector<std::byte> got = download();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == bytes_[i]) continue;
      return ::testing::AssertionFailure()
             << host.describe() << ": byte " << static_cast<std::int64_t>(i - first_) << " is "
             << static_cast<int>(got[i]) << ", want " << static_cast<int>(bytes_[i]);
    }
    return ::testing::AssertionSuccess();
  }

  TensorView host;
  TensorView device;

 private:
  static constexpr std::byte kPoison{0xA5};
  std::size_t first_ = kGuard;
  std::vector<std::byte> bytes_;
  Tensor device_bytes_;
};

/// A poisoned workspace of exactly this many bytes, between guards.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::size_t bytes)
      : bytes_(bytes), memory_(DType::kU8, 1, static_cast<std::int64_t>(bytes)) {}
  std::span<std::byte> span() const { return {memory_.device.as<std::byte>(), bytes_}; }
  bool has_guards() const {
    const std::vector<std::byte> got = memory_.download();
    for (std::size_t i = 0; i < TensorPair::kGuard; ++i) {
      if (got[i] != std::byte{0xA5} || got[got.size() - 1 - i] != std::byte{0xA5}) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_;
  TensorPair memory_;
};

/// i32 [1] on the GPU, initially 0.
class ErrorWord {
 public:
  ErrorWord() : word_(TensorPair::flat(DType::kI32, 1)) {
    word_.fill_bytes([](std::size_t) { return 0; });
  }
  const TensorView& view() const { return word_.device; }
  std::int32_t value() const {
    std::int32_t value = 0;
    cuda::check_cuda(cudaMemcpy(&value, word_.device.data(), sizeof value, cudaMemcpyDeviceToHost),
                     "error word");
    return value;
  }

 private:
  TensorPair word_;
};

enum class Routing { kRandom, kNone, kOneExpert };

inline std::int64_t random_id(Routing routing, std::int64_t num_experts, std::uint64_t i) {
  if (routing == Routing::kNone) return -1 - static_cast<std::int64_t>(i % 3);
  if (routing == Routing::kOneExpert) return num_experts - 1;
  const std::uint64_t bits = random_bits(17, i);
  return (bits >> 40) % 8 == 0
             ? -1
             : static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(num_experts));
}

/// [T, K] i32 or i64; strided ids have gaps in both dimensions.
inline TensorPair make_ids(DType dtype, std::int64_t num_tokens, std::int64_t num_topk,
                           std::int64_t num_experts, Routing routing, bool is_strided) {
  const Placement placement =
      is_strided ? Placement{2 * num_topk + 3, 2, 1} : Placement{num_topk, 1, 0};
  TensorPair ids(dtype, num_tokens, num_topk, placement);
  const auto id = [&](std::int64_t t, std::int64_t k) {
    return random_id(routing, num_experts, static_cast<std::uint64_t>(t * num_topk + k));
  };
  if (dtype == DType::kI64) {
    ids.fill<std::int64_t>(id);
  } else {
    ids.fill<std::int32_t>(id);
  }
  return ids;
}

/// Global expert e is local expert e / 2 if e is even, otherwise on another rank.
inline TensorPair make_map(std::int64_t num_experts) {
  TensorPair map = TensorPair::flat(DType::kI32, num_experts);
  for (std::int64_t e = 0; e < num_experts; ++e) {
    map.host.as<std::int32_t>()[e] = e % 2 == 0 ? static_cast<std::int32_t>(e / 2) : -1;
  }
  map.upload();
  return map;
}

}  // namespace switchyard::test
