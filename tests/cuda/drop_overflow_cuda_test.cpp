// SPDX-License-Identifier: Apache-2.0
//
// A GPU drops the same choices as the CPU (plan/overflow.h): every rank's view of routings with
// many ties and of weights without a natural order.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/exchange/overflow_key.h"
#include "cuda/exchange/routing.h"
#include "device_copy.h"
#include "gpu.h"
#include "plan/overflow.h"

namespace switchyard {
namespace {

using test::device_copy;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kOdd[] = {kNaN, -kNaN, kInf, -kInf, 0.0f, -0.0f, 1e-45f, -1e-45f, -1.0f, 1.0f};

struct DropCase {
  std::string name;
  int num_topk = 4;
  std::int32_t num_experts = 12;
  std::vector<std::int64_t> num_tokens;  ///< per rank
  std::int64_t capacity = 9;
  std::uint64_t num_weights = 1000;  ///< number of distinct weights; 0: kOdd; few cause ties
  double hot_share = 0.3;            ///< share of choices that name expert 0
  std::int64_t spare_tokens = 0;     ///< room per rank beyond the largest number of tokens
};

void PrintTo(const DropCase& c, std::ostream* out) { *out << c.name; }

/// The choices of all ranks by (rank, token, k), and those that plan/overflow.h keeps.
struct Choices {
  std::vector<std::uint16_t> ids;
  std::vector<float> weights;
  std::vector<std::uint16_t> kept;

  explicit Choices(const DropCase& c) {
    std::int64_t count = 0;
    for (const std::int64_t tokens : c.num_tokens) count += tokens * c.num_topk;
    std::vector<std::int64_t> load(static_cast<std::size_t>(c.num_experts));
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
      ids.push_back(id_of(c, i));
      weights.push_back(weight_of(c, i));
      if (ids.back() != kNoExpert) ++load[ids.back()];
    }
    drop(c, load);
  }

 private:
  static std::uint16_t id_of(const DropCase& c, std::uint64_t i) {
    if (random_uniform(1, i) < 0.1) return kNoExpert;
    if (random_uniform(2, i) < c.hot_share) return 0;
    const auto experts = static_cast<std::uint64_t>(c.num_experts);
    return static_cast<std::uint16_t>(random_bits(3, i) % experts);
  }
  static float weight_of(const DropCase& c, std::uint64_t i) {
    const std::uint64_t bits = random_bits(4, i);
    if (c.num_weights == 0) return kOdd[bits % std::size(kOdd)];
    return static_cast<float>(bits % c.num_weights) / static_cast<float>(c.num_weights);
  }
  void drop(const DropCase& c, const std::vector<std::int64_t>& load) {
    std::vector<RankRouting> table;
    std::size_t first = 0;
    for (const std::int64_t tokens : c.num_tokens) {
      table.push_back({tokens, ids.data() + first, weights.data() + first});
      first += static_cast<std::size_t>(tokens * c.num_topk);
    }
    std::vector<std::vector<std::uint16_t>> copies;
    drop_overflow(c.num_topk, c.capacity, load, table, copies);
    for (const RankRouting& rank : table) {
      kept.insert(kept.end(), rank.topk_ids, rank.topk_ids + rank.num_tokens * c.num_topk);
    }
  }
};

std::vector<std::int32_t> download(const cuda::DeviceBuffer& buffer, std::size_t count) {
  std::vector<std::int32_t> values(count);
  cuda::check_cuda(cudaMemcpy(values.data(), buffer.data(), count * 4, cudaMemcpyDeviceToHost),
                   "copy");
  return values;
}

std::int32_t as_id(std::uint16_t id) { return id == kNoExpert ? -1 : id; }

/// The arguments of one rank's kernels, after rows were gathered and the rank's own ids saved.
class DropRun {
 public:
  DropRun(const DropCase& c, const Choices& choices) : c_(c), choices_(choices) {
    const auto topk = static_cast<std::size_t>(c.num_topk);
    std::vector<std::uint32_t>& rows = gathered_;
    for (std::size_t first = 0; first < choices.ids.size(); first += topk) {
      for (std::size_t k = 0; k < topk; ++k) {
        rows.push_back(static_cast<std::uint32_t>(as_id(choices.ids[first + k])));
      }
      for (std::size_t k = 0; k < topk; ++k) {
        rows.push_back(bits_from_f32(choices.weights[first + k]));
      }
    }
    std::vector<std::int32_t> num_from(c.num_tokens.begin(), c.num_tokens.end());
    const auto most = *std::max_element(num_from.begin(), num_from.end());
    num_rows_ = device_copy<std::int32_t>(
        {static_cast<std::int32_t>(rows.size() / std::max<std::size_t>(1, 2 * topk))});
    num_from_ = device_copy(num_from);
    args_.ownership = cuda::KernelOwnership({c.num_experts, static_cast<int>(num_from.size())});
    args_.num_topk = c.num_topk;
    args_.max_tokens = most + static_cast<std::int32_t>(c.spare_tokens);
    args_.num_rows = num_rows_.as<std::int32_t>();
    args_.num_from = num_from_.as<std::int32_t>();
    args_.capacity = c.capacity;
    allocate_sort_memory();
  }

  void expect_as_on_cpu(int rank) {
    const auto topk = static_cast<std::size_t>(c_.num_topk);
    std::size_t first = 0;
    for (int r = 0; r < rank; ++r) first += topk * tokens_of(r);
    const std::size_t count = topk * tokens_of(rank);
    std::vector<std::int32_t> own;
    for (std::size_t i = 0; i < count; ++i) own.push_back(as_id(choices_.ids[first + i]));
    const cuda::DeviceBuffer own_ids = device_copy(own);
    const cuda::DeviceBuffer num_dropped = device_copy<std::int32_t>({77});
    args_.rank = rank;
    args_.num_tokens = static_cast<std::int32_t>(tokens_of(rank));
    args_.own_ids = own_ids.as<std::int32_t>();
    args_.num_dropped = num_dropped.as<std::int32_t>();
    rows_ = device_copy(gathered_);  // the kernels change them
    args_.rows = rows_.as<std::uint32_t>();
    cuda::launch_drop_overflow(args_, nullptr);
    cuda::check_cuda(cudaDeviceSynchronize(), "drop");
    std::int32_t lost = 0;
    const std::vector<std::int32_t> got = download(own_ids, count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t want = as_id(choices_.kept[first + i]);
      ASSERT_EQ(got[i], want) << "choice " << i << " of rank " << rank;
      lost += want != own[i] ? 1 : 0;
    }
    EXPECT_EQ(download(num_dropped, 1)[0], lost) << "rank " << rank;
    const std::vector<std::int32_t> all = download(rows_, gathered_.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t row = i / (2 * topk);
      const std::size_t k = i % (2 * topk);
      const auto want =
          k < topk ? as_id(choices_.kept[row * topk + k]) : static_cast<std::int32_t>(gathered_[i]);
      ASSERT_EQ(all[i], want) << "word " << k << " of row " << row;
    }
  }

 private:
  std::size_t tokens_of(int rank) const {
    return static_cast<std::size_t>(c_.num_tokens[static_cast<std::size_t>(rank)]);
  }
  void allocate_sort_memory() {
    const auto count = static_cast<std::size_t>(args_.max_choices());
    keys_ = cuda::DeviceBuffer(2 * count * sizeof(std::uint64_t));
    places_ = cuda::DeviceBuffer(2 * count * sizeof(std::uint32_t));
    args_.sort.keys = keys_.as<std::uint64_t>();
    args_.sort.choices = places_.as<std::uint32_t>();
    args_.sort.work_bytes = cuda::sort_work_bytes(args_.max_choices(), c_.num_experts);
    work_ = cuda::DeviceBuffer(args_.sort.work_bytes);
    args_.sort.work = work_.data();
  }

  const DropCase& c_;
  const Choices& choices_;
  std::vector<std::uint32_t> gathered_;  ///< [P T, 2 K]
  cuda::DeviceBuffer rows_, num_rows_, num_from_, keys_, places_, work_;
  cuda::RoutingArgs args_;
};

std::vector<DropCase> cases() {
  std::vector<DropCase> all{
      {.name = "few", .num_tokens = {37, 5, 0, 1, 20}},
      {.name = "spare_room", .num_tokens = {37, 5, 0, 1, 20}, .spare_tokens = 100},
      {.name = "all_tied", .num_tokens = {200, 311}, .capacity = 40, .num_weights = 1},
      {.name = "odd_weights", .num_tokens = {200, 311}, .capacity = 40, .num_weights = 0},
      {.name = "one_choice", .num_topk = 1, .num_tokens = {500, 1, 77}, .capacity = 1},
      {.name = "one_expert", .num_experts = 1, .num_tokens = {100, 100}, .hot_share = 1.0},
      {.name = "everything_fits", .num_tokens = {30, 30}, .capacity = 10'000},
      {.name = "nothing", .num_tokens = {0, 0}},
      {.name = "many_experts",
       .num_topk = 32,
       .num_experts = 16384,
       .num_tokens = {300, 200},
       .capacity = 2},
      {.name = "prefill",
       .num_topk = 8,
       .num_experts = 256,
       .num_tokens = std::vector<std::int64_t>(8, 4096),
       .capacity = 1024,
       .num_weights = 5000},
  };
  return all;
}

class DropOverflowTest : public testing::TestWithParam<DropCase> {};

TEST_P(DropOverflowTest, DropsWhatTheCpuDrops) {
  REQUIRE_GPU();
  const DropCase& c = GetParam();
  const Choices choices(c);
  DropRun run(c, choices);
  for (int rank = 0; rank < static_cast<int>(c.num_tokens.size()); ++rank) {
    run.expect_as_on_cpu(rank);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DropOverflowTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST(OverflowKeyTest, OrdersAsTheDefinition) {
  const auto value = [](float weight) { return weight == weight ? weight : -kInf; };
  const float more[] = {3e38f, 0.25f, 0.5f, -0.5f, -3e38f, 1e-38f};
  std::vector<float> weights(std::begin(kOdd), std::end(kOdd));
  weights.insert(weights.end(), std::begin(more), std::end(more));
  for (const float a : weights) {
    for (const float b : weights) {
      EXPECT_EQ(cuda::overflow_key(3, a) < cuda::overflow_key(3, b), value(a) > value(b))
          << a << ", " << b;
      EXPECT_LT(cuda::overflow_key(3, a), cuda::overflow_key(4, b)) << a << ", " << b;
    }
  }
  EXPECT_EQ(cuda::expert_of_key(cuda::overflow_key(16383, kNaN)), 16383);
  EXPECT_EQ(cuda::overflow_key_bits(256), 40);
  for (const std::int32_t experts : {1, 2, 255, 256, 257, 16384}) {
    const std::uint64_t looked_at = (std::uint64_t{1} << cuda::overflow_key_bits(experts)) - 1;
    for (const float weight : weights) {
      const std::uint64_t last = cuda::overflow_key(experts - 1, weight);
      EXPECT_EQ(last & looked_at, last) << experts;
      EXPECT_LT(last, cuda::kNoChoiceKey & looked_at) << experts;
    }
  }
}

}  // namespace
}  // namespace switchyard
