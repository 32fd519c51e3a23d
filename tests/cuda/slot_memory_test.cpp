// SPDX-License-Identifier: Apache-2.0
//
// The arrays of an in-flight slot, and the regions of its window, lie beside one another and are as
// large as their comments say. Needs no GPU: addresses are only compared.

#include "exchange/push/slot_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/device.h"

#include "exchange/push/kernel_arguments.h"

namespace switchyard {
namespace {

constexpr int kRanks = 3;
constexpr int kRank = 1;
constexpr std::int64_t kTokens = 37;
constexpr int kTopk = 3;
constexpr int kExperts = 7;

// Where an allocation could begin.
std::byte* const kBase = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);

struct Part {
  std::string name;
  const void* data;
  std::size_t bytes;
};

class Parts {
 public:
  template <typename T>
  void add(const std::string& name, const T* data, std::size_t count) {
    if (data != nullptr) parts_.push_back({name, data, count * sizeof(T)});
  }
  void expect_side_by_side(const std::byte* base, std::size_t num_bytes, std::size_t alignment) {
    std::sort(parts_.begin(), parts_.end(),
              [](const Part& a, const Part& b) { return a.data < b.data; });
    const std::byte* end = base;
    for (const Part& part : parts_) {
      const auto* data = static_cast<const std::byte*>(part.data);
      EXPECT_GE(data, end) << part.name << " begins inside the part before it";
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % alignment, 0u) << part.name;
      end = data + part.bytes;
    }
    EXPECT_LE(end, base + num_bytes);
  }
  std::size_t size() const { return parts_.size(); }

 private:
  std::vector<Part> parts_;
};

ExchangeConfig config_of(Layout layout, bool drops) {
  ExchangeConfig config;
  config.num_experts = kExperts;
  config.num_topk = kTopk;
  config.hidden = 136;
  config.max_tokens_per_rank = kTokens;
  config.layout = layout;
  config.scheme = schemes::kFp8Block;
  config.payload_bytes = {3, 16};
  if (layout == Layout::kExpanded) config.expert_alignment = 16;
  if (drops) {
    config.capacity = 5;
    config.overflow = Overflow::kDrop;
  }
  return config;
}

std::vector<ExchangeConfig> configs() {
  std::vector<ExchangeConfig> all;
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                              Layout::kByRank, Layout::kAllGather}) {
    all.push_back(config_of(layout, false));
    if (num_cuda_devices() > 0)
      all.push_back(config_of(layout, true));  // sizes a sort of the GPU's
  }
  return all;
}

void add_state(Parts& parts, const std::string& name, const cuda::CallState& state,
               std::size_t topk) {
  const auto ranks = static_cast<std::size_t>(kRanks);
  const auto tokens = static_cast<std::size_t>(kTokens);
  parts.add(name + "counter", state.counter, cuda::kCounterWords);
  parts.add(name + "num_partials", state.num_partials, tokens);
  parts.add(name + "columns", state.columns, tokens * topk);
  parts.add(name + "partial_weights", state.partial_weights, tokens * topk);
  parts.add(name + "partial_ranks", state.partial_ranks, tokens * topk);
  parts.add(name + "num_arrivals", state.num_arrivals, ranks);
  parts.add(name + "arrival_token", state.arrival_token, ranks * tokens);
  parts.add(name + "arrival_rows", state.arrival_rows, ranks * tokens * topk);
  parts.add(name + "arrival_weights", state.arrival_weights, ranks * tokens * topk);
}

TEST(SlotMemoryTest, WhatACallLeavesLiesSideBySide) {
  for (const ExchangeConfig& config : configs()) {
    const PushExchangeShape shape = make_push_exchange_shape(config, kRanks, kRank);
    const SlotMemory memory = lay_out_slot(kBase, shape, kRank, true);
    const auto local = static_cast<std::size_t>(shape.exchange.ownership.count(kRank));
    const auto tokens = static_cast<std::size_t>(kTokens);
    Parts parts;
    add_state(parts, "", memory.state, static_cast<std::size_t>(shape.main_topk));
    parts.add("num_rows", memory.num_rows, local);
    parts.add("total_rows", memory.total_rows, 1);
    parts.add("first_row", memory.first_row, local);
    if (shape.gathers) parts.add("num_rows_of_expert", memory.num_rows_of_expert, local);
    parts.add("own_ids", memory.own_ids, tokens * kTopk);
    parts.add("num_dropped", memory.num_dropped, 1);
    EXPECT_EQ(memory.payload_counters.size(), 2u);
    for (std::uint64_t* counter : memory.payload_counters)
      parts.add("payload", counter, cuda::kCounterWords);
    if (shape.gathers_routing) {
      const GatherMemory& gather = memory.gather;
      add_state(parts, "gather ", gather.state, kRanks);
      parts.add("gather num_rows", gather.num_rows, 1);
      parts.add("gather total_rows", gather.total_rows, 1);
      parts.add("gather rows", gather.rows, kRanks * tokens * 2 * kTopk * sizeof(std::uint32_t));
      parts.add("gather own_rows", gather.own_rows, tokens * 2 * kTopk);
    }
    parts.expect_side_by_side(kBase, memory.num_bytes, 256);
    EXPECT_EQ(lay_out_slot(nullptr, shape, kRank, true).num_bytes, memory.num_bytes);
    EXPECT_EQ(memory.first_row != nullptr, is_expert_major(config.layout));
  }
}

TEST(SlotMemoryTest, WhatComesLiesSideBySideInABufferOfAnySize) {
  for (const ExchangeConfig& config : configs()) {
    const PushExchangeShape shape = make_push_exchange_shape(config, kRanks, kRank);
    const bool is_major = is_expert_major(config.layout);
    for (const std::int64_t num_rows : {std::int64_t{1}, shape.exchange.max_buffer_rows}) {
      const ReceivedMemory memory = lay_out_received(kBase, shape, kRank, num_rows);
      const auto rows = static_cast<std::size_t>(num_rows);
      Parts parts;
      parts.add("rows", memory.rows, rows * 136);
      parts.add("scales", memory.scales,
                scale_blocks(shape.config, shape.exchange, kRank, num_rows).num_bytes());
      parts.add("row_ids", memory.row_ids, rows * kTopk);
      parts.add("row_weights", memory.row_weights, rows * (is_major ? 1 : kTopk));
      parts.add("payload of 3", memory.payloads.at(0), rows * 3);
      parts.add("payload of 16", memory.payloads.at(1), rows * 16);
      EXPECT_EQ(parts.size(), is_major ? 5u : 6u);
      parts.expect_side_by_side(kBase, memory.num_bytes, 256);
      EXPECT_EQ(lay_out_received(nullptr, shape, kRank, num_rows).num_bytes, memory.num_bytes);
    }
  }
}

// Every rank must find the regions of a slot at the same places of every window.
TEST(SlotMemoryTest, RegionsOfAWindowLieSideBySide) {
  for (const ExchangeConfig& config : configs()) {
    const PushExchangeShape shape = make_push_exchange_shape(config, kRanks, kRank);
    cuda::PeerTable windows{};
    for (int r = 0; r < kRanks; ++r) windows.base[r] = kBase + r * (std::ptrdiff_t{1} << 32);
    SlotKernels shared;
    shared.shape = &shape;
    shared.rank = kRank;
    shared.memory = lay_out_slot(kBase, shape, kRank, true);
    const SlotKernels slot = make_slot_kernels(shared, windows);
    for (int r = 0; r < kRanks; ++r) {
      Parts parts;
      parts.add("main", slot.main.windows.base[r], shape.main.total_bytes);
      ASSERT_EQ(slot.payloads.size(), 2u);
      for (const PushRegion& payload : slot.payloads) {
        parts.add("payload", payload.windows.base[r], payload.base.layout.total_bytes);
      }
      if (shape.gathers_routing) {
        parts.add("gather", slot.gather.windows.base[r], slot.gather.base.layout.total_bytes);
      }
      parts.add("weights", slot.weights.base[r], shape.weights.total_bytes);
      parts.expect_side_by_side(windows.base[r], shape.window_bytes, kUnitBytes);
    }
  }
}

TEST(SlotMemoryTest, KernelsGetTheSizeOfTheCall) {
  const PushExchangeShape shape =
      make_push_exchange_shape(config_of(Layout::kExpanded, false), kRanks, kRank);
  SlotKernels slot;
  slot.shape = &shape;
  slot.rank = kRank;
  slot.received = lay_out_received(kBase, shape, kRank, shape.exchange.max_buffer_rows);
  PushDispatch call;
  call.num_rows = 48;
  EXPECT_EQ(scale_placement(slot, call).block.num_rows, 48);
  EXPECT_EQ(routing_args(slot, call).num_buffer_rows, 48);
  EXPECT_EQ(scale_placement(slot, call).units_per_row, 1);
  call.routing_only = true;
  EXPECT_EQ(scale_placement(slot, call).units_per_row, 0);
  EXPECT_EQ(token_args(slot, call).layout.num_chunks, 1);
}

}  // namespace
}  // namespace switchyard
