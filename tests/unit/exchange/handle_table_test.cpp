// SPDX-License-Identifier: Apache-2.0
//
// Slots of handles: which one a new handle gets, which handles are alive, and in which stage.

#include "exchange/handle_table.h"

#include <memory>

#include <gtest/gtest.h>

#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;

DispatchHandle opened(HandleTable& table) {
  const std::size_t slot = table.open("dispatch");
  table.advance(slot, Stage::kSent);
  return table.handle_of(slot);
}

TEST(HandleTableTest, TheFirstFreeSlotIsTaken) {
  HandleTable table(3);
  EXPECT_EQ(table.size(), 3u);
  const DispatchHandle handles[] = {opened(table), opened(table), opened(table)};
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(table.index_of(handles[i], "combine"), i);
  expect_invalid("dispatch: 3 handles are alive, max_in_flight is 3",
                 [&] { table.open("dispatch"); });
  table.advance(2, Stage::kFree);
  table.advance(1, Stage::kFree);
  EXPECT_EQ(table.open("dispatch"), 1u);
}

// A call that fails between open and advance leaves the slot free.
TEST(HandleTableTest, ASlotIsInUseFromAdvanceOn) {
  HandleTable table(1);
  EXPECT_EQ(table.open("dispatch"), 0u);
  const DispatchHandle failed = table.handle_of(0);
  expect_invalid("combine: the handle is not alive here",
                 [&] { table.index_of(failed, "combine"); });
  const DispatchHandle handle = opened(table);
  EXPECT_EQ(table.index_of(handle, "combine"), 0u);
  expect_invalid("not alive", [&] { table.index_of(failed, "combine"); });
}

TEST(HandleTableTest, ReusedSlotsHaveOtherIds) {
  HandleTable table(1);
  const DispatchHandle first = opened(table);
  const std::uint64_t id = table.id(0);
  table.advance(0, Stage::kFree);
  expect_invalid("not alive", [&] { table.index_of(first, "release"); });
  const DispatchHandle second = opened(table);
  EXPECT_NE(table.id(0), id);
  expect_invalid("release: the handle is not alive here",
                 [&] { table.index_of(first, "release"); });
  EXPECT_EQ(table.index_of(second, "release"), 0u);
  EXPECT_EQ(table.former_slot(first), 0u);
}

TEST(HandleTableTest, StagesFollowOneAnother) {
  HandleTable table(1);
  const DispatchHandle handle = opened(table);
  EXPECT_EQ(table.stage(0), Stage::kSent);
  EXPECT_EQ(table.find(handle, Stage::kSent, "dispatch_receive"), 0u);
  expect_invalid(
      "combine: the handle was sent by dispatch last, must have been received from "
      "dispatch",
      [&] { table.find(handle, Stage::kReceived, "combine"); });
  table.advance(0, Stage::kReceived);
  EXPECT_EQ(table.find(handle, Stage::kReceived, "combine"), 0u);
  table.advance(0, Stage::kReturned);
  expect_invalid("was sent by combine last, must have been received from dispatch",
                 [&] { table.find(handle, Stage::kReceived, "combine"); });
}

// Same slot, same number: still not this table's.
TEST(HandleTableTest, HandlesOfOthersAreUnknown) {
  HandleTable ours(2);
  HandleTable theirs(2);
  opened(ours);
  const DispatchHandle other = opened(theirs);
  for (const DispatchHandle& handle : {other, DispatchHandle()}) {
    expect_invalid("not alive here", [&] { ours.index_of(handle, "combine"); });
    EXPECT_EQ(ours.former_slot(handle), ours.size());
    EXPECT_EQ(ours.routing_id(handle), 0u);
  }
}

// Routing stays with every copy made after keep(), however long the slot is free.
TEST(HandleTableTest, HandlesCarryTheirRouting) {
  HandleTable ours(1);
  HandleTable theirs(1);
  DispatchHandle handle = opened(ours);
  EXPECT_EQ(HandleTable::routing(handle), nullptr);
  EXPECT_EQ(ours.routing_id(handle), 0u);
  HandleTable::keep(handle, 41);
  const std::shared_ptr<int> routing = std::make_shared<int>(3);
  const auto cached =
      std::shared_ptr<CachedRouting>(routing, reinterpret_cast<CachedRouting*>(routing.get()));
  HandleTable::keep(handle, cached);
  const DispatchHandle copy = handle;
  ours.advance(0, Stage::kFree);
  EXPECT_EQ(ours.routing_id(copy), 41u);
  EXPECT_EQ(theirs.routing_id(copy), 0u);
  EXPECT_EQ(HandleTable::routing(copy), cached);
  EXPECT_EQ(ours.former_slot(copy), 0u);
}

}  // namespace
}  // namespace switchyard
