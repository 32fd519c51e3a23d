// SPDX-License-Identifier: Apache-2.0

#include "compat/tensor_pool.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace switchyard {

/// By size; they may come back from any thread.
struct TensorPool::Blocks {
  std::mutex mutex;
  std::map<std::size_t, std::vector<std::shared_ptr<Tensor>>> free;

  std::shared_ptr<Tensor> find(std::size_t num_bytes) {
    const std::lock_guard lock(mutex);
    auto& list = free[num_bytes];
    if (list.empty()) return nullptr;
    std::shared_ptr<Tensor> block = std::move(list.back());
    list.pop_back();
    return block;
  }
  void give_back(std::size_t num_bytes, std::shared_ptr<Tensor> block) {
    const std::lock_guard lock(mutex);
    free[num_bytes].push_back(std::move(block));
  }
};

TensorPool::TensorPool(Device device)
    : device_(device), blocks_(device.is_cpu() ? nullptr : std::make_shared<Blocks>()) {}

Tensor TensorPool::make(DType dtype, std::span<const std::int64_t> shape) const {
  if (device_.is_cpu()) return Tensor(dtype, shape);
  constexpr std::size_t kMinBytes = 512;
  const TensorView probe(nullptr, dtype, shape, device_);
  const std::size_t num_bytes = std::bit_ceil(std::max(kMinBytes, probe.num_bytes()));
  std::shared_ptr<Tensor> block = blocks_->find(num_bytes);
  if (block == nullptr) {
    block = std::make_shared<Tensor>(
        DType::kU8, std::initializer_list<std::int64_t>{static_cast<std::int64_t>(num_bytes)},
        device_);
  }
  auto* const memory = block->as<std::byte>();
  std::shared_ptr<std::byte> owner(memory, [blocks = blocks_, block, num_bytes](std::byte*) {
    blocks->give_back(num_bytes, block);
  });
  return Tensor(std::move(owner), TensorView(memory, dtype, shape, device_));
}

}  // namespace switchyard
