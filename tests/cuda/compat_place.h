// SPDX-License-Identifier: Apache-2.0
//
// compat_place.h: where a rank of a compat test works, the host or a GPU, and the bytes that it saw
// there. A case is written once and runs in both places; what it recorded must be the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/exchange_types.h"
#include "switchyard/group.h"
#include "switchyard/tensor.h"

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/gpu.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard::test {

class Place {
 public:
  using Bytes = std::vector<std::uint8_t>;

  /// Without a GPU index: the host.
  explicit Place(int gpu = -1)
      : device_(gpu < 0 ? Device::cpu() : Device::cuda(gpu)), stream_(Stream::host()) {
    if (gpu < 0) return;
    cuda::check_cuda(cudaSetDevice(gpu), "cudaSetDevice");
    own_stream_.emplace_back();
    stream_ = Stream::cuda(own_stream_.back().get(), gpu);
  }

  bool is_on_gpu() const { return device_.is_cuda(); }
  Device device() const { return device_; }
  Stream stream() const { return stream_; }
  ExchangeOptions options() const { return {.device = device_}; }

  /// A copy here, which lives as long as this object: ranks that share a GPU free nothing while
  /// kernels run.
  TensorView put(const TensorView& host) {
    return inputs_.emplace_back(copy_to(host, device_, stream_)).view();
  }
  TensorView blank(DType dtype, std::initializer_list<std::int64_t> shape) {
    return inputs_.emplace_back(dtype, shape, device_).view();
  }

  /// Overwrites a contiguous tensor, behind what the stream has so far.
  void overwrite(const TensorView& view) const {
    if (view.num_bytes() == 0) return;
    if (!is_on_gpu()) std::memset(view.data(), 0x7F, view.num_bytes());
    if (is_on_gpu()) {
      cuda::check_cuda(cudaMemsetAsync(view.data(), 0x7F, view.num_bytes(), stream_.get()),
                       "cudaMemsetAsync");
    }
  }

  /// The bytes of a contiguous tensor; none of an absent one.
  Bytes read(const TensorView& view) const {
    if (!view.has_value()) return {};
    EXPECT_EQ(view.device(), device_) << view.describe();
    const Tensor host = copy_to(view, Device::cpu(), stream_);
    Bytes bytes(host.view().num_bytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), host.data(), bytes.size());
    return bytes;
  }
  std::vector<std::int32_t> read_i32(const TensorView& view) const {
    const Bytes bytes = read(view);
    std::vector<std::int32_t> values(bytes.size() / sizeof(std::int32_t));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  void keep(const std::string& name, const TensorView& view) {
    seen_[name + (view.has_value() ? " " + shape_of(view) : " absent")] = read(view);
  }
  /// Of `view`, which is counts.size() blocks of equally many rows, the first counts[b] of each.
  void keep_rows(const std::string& name, const TensorView& view,
                 const std::vector<std::int32_t>& counts) {
    keep_rows(name + " " + shape_of(view), read(view), counts);
  }
  void keep_rows(const std::string& name, const Bytes& bytes,
                 const std::vector<std::int32_t>& counts) {
    Bytes& kept = seen_[name];
    const std::size_t block_bytes = counts.empty() ? 0 : bytes.size() / counts.size();
    for (std::size_t b = 0; b < counts.size(); ++b) {
      const std::size_t row_bytes = rows_ == 0 ? 0 : block_bytes / rows_;
      const std::size_t size = static_cast<std::size_t>(counts[b]) * row_bytes;
      const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(b * block_bytes);
      kept.insert(kept.end(), begin, begin + static_cast<std::ptrdiff_t>(size));
    }
  }
  /// Rows of a block, for keep_rows.
  void set_rows(std::int64_t rows) { rows_ = static_cast<std::size_t>(rows); }
  void keep_values(const std::string& name, const std::vector<std::int64_t>& values) {
    Bytes& bytes = seen_[name];
    bytes.resize(values.size() * sizeof(std::int64_t));
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  }

  const std::map<std::string, Bytes>& seen() const { return seen_; }

 private:
  static std::string shape_of(const TensorView& view) {
    const std::string text = view.describe();
    return text.substr(0, text.find(" on "));
  }

  Device device_;
  Stream stream_;
  std::vector<cuda::OwnedStream> own_stream_;
  std::vector<Tensor> inputs_;
  std::map<std::string, Bytes> seen_;
  std::size_t rows_ = 1;
};

/// Both saw the same under the same names.
inline void expect_same(const Place& gpu, const Place& host, int rank) {
  for (const auto& [name, bytes] : host.seen()) {
    const auto found = gpu.seen().find(name);
    if (found == gpu.seen().end()) {
      ADD_FAILURE() << "rank " << rank << ": the GPU did not give " << name;
      continue;
    }
    EXPECT_EQ(found->second.size(), bytes.size()) << "rank " << rank << ": " << name;
    const auto [a, b] =
        std::mismatch(bytes.begin(), bytes.end(), found->second.begin(), found->second.end());
    EXPECT_TRUE(a == bytes.end() && b == found->second.end())
        << "rank " << rank << ": " << name << " differs from byte " << a - bytes.begin();
  }
  EXPECT_EQ(gpu.seen().size(), host.seen().size()) << "rank " << rank;
}

/// What a rank does in one place.
using Body = std::function<void(Place& place, const Group& group, const ViewBatch& own)>;

// The case on the host and on GPUs, and a comparison of what it saw.
inline void compare(const ViewShape& shape, const Body& body) {
  run_ranks(shape.num_ranks, [&](const Group& group) {
    const ViewBatch own(shape, group.rank());
    Place host;
    body(host, group, own);
    Place gpu(group.rank() % num_gpus());
    group.barrier();
    body(gpu, group, own);
    expect_same(gpu, host, group.rank());
    group.barrier();  // before anybody frees memory
  });
}

}  // namespace switchyard::test
