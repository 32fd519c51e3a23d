// SPDX-License-Identifier: Apache-2.0

#include "switchyard/eplb.h"

#include <algorithm>
#include <limits>

#include "core/random.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;
using ::testing::ElementsAre;
using Ids = std::vector<std::int32_t>;
using Counts = std::vector<std::int64_t>;

TEST(EplbTest, RefusesSizesThatCannotBe) {
  expect_invalid("num_logical is 0", [] { (void)initial_physical_to_logical(0, 1); });
  expect_invalid("num_redundant is 65532, must be from 0 to 65531",
                 [] { (void)initial_physical_to_logical(4, 65532); });
}

TEST(EplbTest, LogicalMapsListCopiesInOrder) {
  const LogicalMaps maps = compute_logical_maps(Ids{2, 0, 1, 0, -1, 2, 0}, 3);
  EXPECT_EQ(maps.max_replicas, 3);
  EXPECT_THAT(maps.replica_counts, ElementsAre(3, 1, 2));
  EXPECT_THAT(maps.logical_to_physical, ElementsAre(1, 3, 6, 2, -1, -1, 0, 5, -1));
}

TEST(EplbTest, LogicalMapsRefuseBadIds) {
  expect_invalid("physical expert 1 is logical expert 3, must be from 0 to 2", [] {
    (void)compute_logical_maps(Ids{0, 3}, 3);
  });
  expect_invalid("physical expert 0 is logical expert -2",
                 [] { (void)compute_logical_maps(Ids{-2}, 1); });
  expect_invalid("logical expert 1 has no physical expert", [] {
    (void)compute_logical_maps(Ids{0, 2, -1}, 3);
  });
  expect_invalid("number of physical experts is 0", [] { (void)compute_logical_maps(Ids{}, 1); });
}

// instruments/conformance has the choices of the first tokens among two and three copies.
TEST(EplbTest, ReplicasByHash) {
  for (std::int64_t t = 0; t < 8; ++t) EXPECT_EQ(choose_replica(t, 1), 0);
  // Beyond 2^32 the token number wraps around.
  EXPECT_EQ(choose_replica((std::int64_t{1} << 32) + 2, 3), choose_replica(2, 3));
}

TEST(EplbTest, MapsTokensToCopies) {
  // Logical expert 0 is at 0, 3 and 5; logical 1 at 1 and 4; logical 2 at 2.
  const LogicalMaps maps = compute_logical_maps(Ids{0, 1, 2, 0, 1, 0}, 3);
  const Ids ids{0, 1, 0, 1, 0, 1, 0, 2, 0, -1};  // [5, 2]
  Counts physical(10, 99);
  map_logical_to_physical(TensorView::of(ids.data(), {5, 2}), maps,
                          TensorView::of(physical.data(), {5, 2}));
  EXPECT_THAT(physical, ElementsAre(0, 1, 0, 4, 5, 1, 5, 2, 3, -1));

  Counts bad{0, 3};
  const TensorView view = TensorView::of(bad.data(), {1, 2});
  expect_invalid("element 1 of ids is 3, must be below 3",
                 [&] { map_logical_to_physical(view, maps, view); });
  EXPECT_THAT(bad, ElementsAre(0, 3));
  const TensorView flat = TensorView::of(bad.data(), {2});
  expect_invalid("must be [T, K]", [&] { map_logical_to_physical(flat, maps, flat); });
}

TEST(ExpertLoadTest, CountsChosenExpertsWithoutPadding) {
  ExpertLoad load(4);
  const Counts ids{0, 3, 3, -1, 1, 1, 2, 2};  // [4, 2], the last row is padding
  load.add_step(TensorView::of(ids.data(), {4, 2}), 3);
  EXPECT_THAT(load.physical_load(), ElementsAre(1, 2, 0, 2));
  load.add_step(Counts{10, 0, 5, 0});
  EXPECT_THAT(load.physical_load(), ElementsAre(11, 2, 5, 2));
  EXPECT_EQ(load.num_steps(), 2);
  EXPECT_THAT(load.logical_load(Ids{0, 1, 2, 0}, 3), ElementsAre(13, 2, 5));
  EXPECT_THAT(load.logical_load(Ids{1, 1, -1, 0}, 2), ElementsAre(2, 13));
  load.reset();
  EXPECT_EQ(load.num_steps(), 0);
  EXPECT_THAT(load.physical_load(), ElementsAre(0, 0, 0, 0));
}

TEST(ExpertLoadTest, ForgetsStepsBeforeTheWindow) {
  for (const int window : {1, 3, 7}) {
    ExpertLoad load(5, window);
    std::vector<Counts> steps;
    for (std::uint64_t s = 0; s < 20; ++s) {
      Counts step;
      for (std::uint64_t e = 0; e < 5; ++e) {
        step.push_back(static_cast<std::int64_t>(random_bits(s, e) % 100));
      }
      load.add_step(step);
      steps.push_back(step);
      Counts sums(5);
      const std::size_t first = steps.size() - std::min(steps.size(), std::size_t(window));
      for (std::size_t i = first; i < steps.size(); ++i) {
        for (std::size_t e = 0; e < 5; ++e) sums[e] += steps[i][e];
      }
      EXPECT_THAT(load.physical_load(), ::testing::ElementsAreArray(sums));
      EXPECT_EQ(load.num_steps(), static_cast<std::int64_t>(steps.size() - first));
      if (s == 11) {
        load.reset();
        steps.clear();
      }
    }
  }
}

TEST(ExpertLoadTest, AnErrorAddsNothing) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  ExpertLoad load(2, 4);
  load.add_step(Counts{kMax - 1, 5});
  const auto refuses = [&](const char* phrase, const auto& call) {
    expect_invalid(phrase, call);
    EXPECT_THAT(load.physical_load(), ElementsAre(kMax - 1, 5));
    EXPECT_EQ(load.num_steps(), 1);
  };
  refuses("the step has 3 counts, must have 2", [&] { load.add_step(Counts{1, 2, 3}); });
  refuses("expert 1 has -1 rows", [&] { load.add_step(Counts{1, -1}); });
  refuses("overflows 64 bits", [&] { load.add_step(Counts{2, 1}); });
  const Counts ids{0, 2};
  const TensorView view = TensorView::of(ids.data(), {1, 2});
  refuses("element 1 of physical_ids is 2, must be below 2", [&] { load.add_step(view, 1); });
  refuses("num_tokens is 2, must be from 0 to 1", [&] { load.add_step(view, 2); });
  refuses("num_tokens is -1", [&] { load.add_step(view, -1); });
  refuses("the map has 3 physical experts, must have 2", [&] {
    (void)load.logical_load(Ids{0, 0, 0}, 1);
  });
  refuses("physical expert 1 is logical expert 1, must be from 0 to 0", [&] {
    (void)load.logical_load(Ids{0, 1}, 1);
  });
  refuses("overflows 64 bits", [&] { (void)load.logical_load(Ids{0, 0}, 1); });
  refuses("num_physical is 0", [] { ExpertLoad none(0); });
  refuses("window is 0 steps", [] { ExpertLoad none(1, 0); });
}

}  // namespace
}  // namespace switchyard
