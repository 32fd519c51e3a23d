// SPDX-License-Identifier: Apache-2.0

#include "exchange/pool/tensor_pool.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace switchyard {
namespace {

using Memory = std::shared_ptr<std::byte>;

constexpr std::size_t kMinBytes = 512;
constexpr std::size_t kSlabBytes = std::size_t{4} << 20;

Memory allocate(std::size_t num_bytes, Device device) {
  const auto tensor = std::make_shared<Tensor>(
      DType::kU8, std::initializer_list<std::int64_t>{static_cast<std::int64_t>(num_bytes)},
      device);
  return {tensor, tensor->as<std::byte>()};
}

}  // namespace

/// Blocks come back from any thread. Small ones are cut from slabs, the first of which is there
/// from the start: results of a few rows take no memory at all.
class TensorPool::Blocks {
 public:
  explicit Blocks(Device device) : device_(device), slab_(allocate(kSlabBytes, device)) {}

  Memory get(std::size_t num_bytes) {
    const std::lock_guard lock(mutex_);
    auto& list = free_[num_bytes];
    if (!list.empty()) {
      Memory block = std::move(list.back());
      list.pop_back();
      return block;
    }
    if (num_bytes > kSlabBytes / 4) return allocate(num_bytes, device_);
    if (used_bytes_ + num_bytes > kSlabBytes) {
      slab_ = allocate(kSlabBytes, device_);
      used_bytes_ = 0;
    }
    Memory block(slab_, slab_.get() + used_bytes_);
    used_bytes_ += num_bytes;
    return block;
  }
  void give_back(std::size_t num_bytes, Memory block) {
    const std::lock_guard lock(mutex_);
    free_[num_bytes].push_back(std::move(block));
  }

 private:
  Device device_;
  std::mutex mutex_;
  Memory slab_;
  std::size_t used_bytes_ = 0;
  std::map<std::size_t, std::vector<Memory>> free_;  // by size
};

TensorPool::TensorPool(Device device)
    : device_(device), blocks_(device.is_cpu() ? nullptr : std::make_shared<Blocks>(device)) {}

Tensor TensorPool::make(DType dtype, std::span<const std::int64_t> shape) const {
  if (device_.is_cpu()) return Tensor(dtype, shape);
  const TensorView probe(nullptr, dtype, shape, device_);
  const std::size_t num_bytes = std::bit_ceil(std::max(kMinBytes, probe.num_bytes()));
  Memory block = blocks_->get(num_bytes);
  std::byte* const data = block.get();
  Memory owner(data, [blocks = blocks_, block = std::move(block), num_bytes](std::byte*) mutable {
    blocks->give_back(num_bytes, std::move(block));
  });
  return Tensor(std::move(owner), TensorView(data, dtype, shape, device_));
}

}  // namespace switchyard
