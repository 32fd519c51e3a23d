// SPDX-License-Identifier: Apache-2.0
//
// The receiving half of a dispatch among more ranks than a warp has lanes. One rank is real: its
// window is filled by hand with what 40 sources would send. All of it: rows and what is kept of
// them are where they belong. With something missing: the kernel ends and names the source.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/exchange.h"

#include "cuda/check.h"
#include "cuda/grid.h"
#include "cuda/memory.h"
#include "gpu.h"
#include "p2p/wait_failure.h"

namespace switchyard {
namespace {

constexpr int kRanks = 40;
constexpr int kRank = 5;
constexpr int kLocal = 2;
constexpr int kFirstLocal = kRank * kLocal;
constexpr int kTopk = 4;
constexpr int kTokens = 4;
constexpr int kHidden = kPieceElements + kGrainElements;  // a piece, and a grain of the next
constexpr int kRowWords = kHidden / 2;
constexpr int kRows = kRanks * kTokens * kLocal;
constexpr std::uint64_t kCall = 7;
constexpr int kEmptyByte = 0xFF;
constexpr std::int32_t kUnset = 0x5A5A5A5A;

enum class Missing { kNothing, kAnnouncement, kCounts, kChoices, kWeights, kElements };

template <typename T>
DeviceBuffer device_copy(const std::vector<T>& values) {
  DeviceBuffer buffer(values.size() * sizeof(T));
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.size_bytes(), cudaMemcpyHostToDevice),
             "copy");
  return buffer;
}

template <typename T>
std::vector<T> host_copy(const DeviceBuffer& buffer) {
  std::vector<T> values(buffer.size_bytes() / sizeof(T));
  check_cuda(cudaMemcpy(values.data(), buffer.data(), buffer.size_bytes(), cudaMemcpyDeviceToHost),
             "copy");
  return values;
}

DeviceBuffer unset(std::size_t words) {
  return device_copy(std::vector<std::int32_t>(words, kUnset));
}

PushLayout layout_of(Layout rows_layout) {
  PushShape shape;
  shape.max_tokens = kTokens;
  shape.hidden = kHidden;
  shape.num_ranks = kRanks;
  shape.num_topk = kTopk;
  shape.max_local_experts = kLocal;
  shape.sends_routes = is_expert_major(rows_layout);
  shape.sends_weights = true;
  return make_push_layout(shape);
}

// What a source sends. Its n-th row is not its n-th token where the source is odd.
int rows_of(int source) { return source % 4; }
int token_of(int source, int n) { return source % 2 == 1 ? n + kTokens - rows_of(source) : n; }
// One expert of the rank, one of another rank, every other row the other expert too, none.
int id_of(int source, int n, int k) {
  const int first = (source + n) % kLocal;
  if (k == 0) return kFirstLocal + first;
  if (k == 1) return (kRank + 1 + source % (kRanks - 1)) % kRanks * kLocal;
  return k == 2 && n % 2 == 1 ? kFirstLocal + (1 - first) : -1;
}
bool is_local(int id) { return id >= kFirstLocal && id < kFirstLocal + kLocal; }
float weight_of(int source, int n, int k) {
  return static_cast<float>(source * 100 + n * 10 + k) + 0.5f;
}
std::uint32_t word_of(int source, int token, int i) {
  return static_cast<std::uint32_t>((source * 8 + token) * 65536 + i);
}

/// The bytes of a window in which everything but one thing of one source has come.
class Window {
 public:
  Window(const PushLayout& layout, Missing missing, int of_source)
      : layout_(layout), bytes_(layout.total_bytes, std::byte{kEmptyByte}) {
    for (int s = 0; s < kRanks; ++s) write_source(s, s == of_source ? missing : Missing::kNothing);
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  void write_record(std::size_t at, std::uint32_t value) {
    const std::uint64_t record = std::uint64_t{kCall} << 32 | value;
    std::memcpy(bytes_.data() + at, &record, sizeof(record));
  }
  void write_source(int s, Missing missing) {
    std::uint32_t counts[kLocal] = {};
    for (int n = 0; n < rows_of(s); ++n) {
      std::size_t at = layout_.routes(kCall, s, n);
      write_record(at, static_cast<std::uint32_t>(token_of(s, n)));
      for (int k = 0; k < kTopk; ++k) {
        const std::uint32_t choice = choice_of(id_of(s, n, k), counts);
        if (missing != Missing::kChoices) write_record(at += kRecordBytes, choice);
      }
      for (int k = 0; k < kTopk && missing != Missing::kWeights; ++k) {
        const float weight = weight_of(s, n, k);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &weight, sizeof(bits));
        write_record(
            layout_.routes(kCall, s, n) + static_cast<std::size_t>(1 + kTopk + k) * kRecordBytes,
            bits);
      }
      write_row(s, token_of(s, n), missing == Missing::kElements);
    }
    const std::size_t at = layout_.announcement(kCall, s);
    if (missing != Missing::kAnnouncement) {
      write_record(at, static_cast<std::uint32_t>(rows_of(s)));
    }
    if (missing == Missing::kAnnouncement || missing == Missing::kCounts) return;
    write_record(at + kRecordBytes, counts[0]);
    write_record(at + 2 * kRecordBytes, counts[1]);
  }
  std::uint32_t choice_of(int id, std::uint32_t (&counts)[kLocal]) const {
    const std::uint32_t place = is_local(id) ? counts[id - kFirstLocal]++ : 0;
    if (!layout_.shape.sends_routes) return static_cast<std::uint32_t>(id);
    if (!is_local(id)) return kNoRoute;
    return static_cast<std::uint32_t>(id - kFirstLocal) << layout_.place_bits | place;
  }
  // Of 16 elements a lane has first the front half, and the back half after those of all lanes.
  void write_row(int s, int token, bool lacks_end) {
    constexpr int kGrainWords = kGrainElements / 2;
    constexpr int kUnitWords = 4;
    for (int i = 0; i < (lacks_end ? kRowWords - 1 : kRowWords); ++i) {
      const int grain = i / kGrainWords;
      const int unit = i % kGrainWords / kUnitWords * kLanes + grain % kLanes;
      const std::size_t at =
          layout_.elements(layout_.row(kCall, s, token), grain / kLanes) +
          static_cast<std::size_t>(unit * kUnitWords + i % kUnitWords) * sizeof(std::uint32_t);
      const std::uint32_t word = word_of(s, token, i);
      std::memcpy(bytes_.data() + at, &word, sizeof(word));
    }
  }

  const PushLayout& layout_;
  std::vector<std::byte> bytes_;
};

/// The rank, and all that a call leaves.
class Receiver {
 public:
  Receiver(Layout rows_layout, int num_ctas, std::uint64_t timeout_ns,
           Missing missing = Missing::kNothing, int of_source = 0)
      : layout_(layout_of(rows_layout)),
        window_(device_copy(Window(layout_, missing, of_source).bytes())) {
    args_.layout = layout_;
    args_.ownership = KernelOwnership(ExpertOwnership{kRanks * kLocal, kRanks});
    args_.rank = kRank;
    args_.num_topk = kTopk;
    args_.rows_layout = rows_layout;
    args_.watch = {&words_.as<WatchWords>()->record, &words_.as<WatchWords>()->abort_word,
                   failed_.as<std::uint32_t>(), timeout_ns};
    args_.windows.base[kRank] = window_.data();
    set_results(rows_layout);
    choose_grid({num_ctas, false, true}, args_);
  }

  WaitRecord run() {
    check_cuda(cudaMemset(failed_.data(), 1, failed_.size_bytes()), "load");
    launch_dispatch(args_, Phases::kNone, false, nullptr);
    check_cuda(cudaMemset(failed_.data(), 0, failed_.size_bytes()), "load");
    launch_dispatch(args_, Phases::kReceive, false, nullptr);
    check_cuda(cudaDeviceSynchronize(), "dispatch");
    return words_.as<WatchWords>()->record;
  }

  const PushLayout& layout() const { return layout_; }
  const DispatchArgs& args() const { return args_; }

 private:
  void set_results(Layout rows_layout) {
    args_.state.counter = counter.as<std::uint64_t>();
    args_.state.num_arrivals = num_arrivals.as<std::int32_t>();
    args_.state.arrival_token = arrival_token.as<std::int32_t>();
    args_.state.arrival_rows = arrival_rows.as<std::int32_t>();
    args_.state.arrival_weights = arrival_weights.as<float>();
    args_.rows = rows.data();
    args_.row_bytes = 2 * kHidden;
    args_.aligned_rows = true;
    args_.capacity = rows_layout == Layout::kBatched ? kRanks * kTokens
                                                     : std::numeric_limits<std::int64_t>::max();
    args_.source_rows = rows_layout == Layout::kByRank ? kTokens : 0;
    args_.num_rows = num_rows.as<std::int32_t>();
    args_.total_rows = total_rows.as<std::int32_t>();
    args_.row_weights = row_weights.as<float>();
    if (is_expert_major(rows_layout)) {
      args_.first_row = first_row.as<std::int64_t>();
    } else {
      args_.row_ids = row_ids.as<std::int32_t>();
    }
  }

  PushLayout layout_;
  DeviceBuffer window_;
  DeviceBuffer failed_ = device_copy<std::uint32_t>({0});
  PinnedBuffer words_{sizeof(WatchWords)};
  DispatchArgs args_;

 public:
  DeviceBuffer counter = device_copy<std::uint64_t>({kCall * kCallUnit});
  DeviceBuffer num_arrivals = unset(kRanks);
  DeviceBuffer arrival_token = unset(kRanks * kTokens);
  DeviceBuffer arrival_rows = unset(kRanks * kTokens * kTopk);
  DeviceBuffer arrival_weights = unset(kRanks * kTokens * kTopk);
  DeviceBuffer rows = unset(kRows * kRowWords);
  DeviceBuffer num_rows = unset(kLocal);
  DeviceBuffer first_row = device_copy<std::int64_t>({-1, -1});
  DeviceBuffer total_rows = unset(1);
  DeviceBuffer row_ids = unset(kRows * kTopk);
  DeviceBuffer row_weights = unset(kRows * kTopk);

  DeviceBuffer& window() { return window_; }
};

/// A row of the receive buffer.
struct ExpectedRow {
  int row;
  int source;
  int n;
  int k;  ///< expert-major layouts: whose row it is; else 0
};

struct Expected {
  std::vector<ExpectedRow> rows;
  std::int32_t num_rows[kLocal] = {};
  std::int64_t first_row[kLocal] = {};
  int total = 0;

  // Rows of an expert lie by (source, token), and so do rows of tokens.
  explicit Expected(Layout layout) {
    for (int e = 0; e < kLocal; ++e) {
      int next = layout == Layout::kBatched ? e * kRanks * kTokens
                 : is_expert_major(layout)  ? total
                                            : 0;
      first_row[e] = next;
      for (int s = 0; s < kRanks; ++s) {
        for (int n = 0; n < rows_of(s); ++n) {
          for (int k = 0; k < kTopk; ++k) {
            if (id_of(s, n, k) != kFirstLocal + e) continue;
            ++num_rows[e];
            if (!is_expert_major(layout)) continue;
            rows.push_back({next++, s, n, k});
            ++total;
          }
        }
      }
    }
    for (int s = 0; s < kRanks && !is_expert_major(layout); ++s) {
      for (int n = 0; n < rows_of(s); ++n, ++total) {
        rows.push_back({layout == Layout::kByRank ? s * kTokens + n : total, s, n, 0});
      }
    }
  }
  int row_of(int source, int n, int k, bool by_choice) const {
    for (const ExpectedRow& r : rows) {
      if (r.source == source && r.n == n && (!by_choice || r.k == k)) return r.row;
    }
    return -1;
  }
};

void expect_rows(const Expected& expected, Receiver& receiver) {
  const auto words = host_copy<std::uint32_t>(receiver.rows);
  std::vector<std::uint32_t> want(words.size(), static_cast<std::uint32_t>(kUnset));
  for (const ExpectedRow& r : expected.rows) {
    for (int i = 0; i < kRowWords; ++i) {
      want[static_cast<std::size_t>(r.row * kRowWords + i)] =
          word_of(r.source, token_of(r.source, r.n), i);
    }
  }
  EXPECT_EQ(words, want);
}

// Ids and weights of rows, where rows are tokens.
void expect_row_facts(const Expected& expected, Receiver& receiver, Layout layout) {
  const auto ids = host_copy<std::int32_t>(receiver.row_ids);
  const auto weights = host_copy<float>(receiver.row_weights);
  for (const ExpectedRow& r : expected.rows) {
    if (is_expert_major(layout)) {
      EXPECT_EQ(weights[static_cast<std::size_t>(r.row)], weight_of(r.source, r.n, r.k));
      continue;
    }
    for (int k = 0; k < kTopk; ++k) {
      const int id = id_of(r.source, r.n, k);
      const int local = is_local(id) ? id - kFirstLocal : -1;
      const auto at = static_cast<std::size_t>(r.row * kTopk + k);
      EXPECT_EQ(ids[at], layout == Layout::kCompact ? local : id) << r.row << " " << k;
      EXPECT_EQ(weights[at], weight_of(r.source, r.n, k)) << r.row << " " << k;
    }
  }
}

void expect_arrivals(const Expected& expected, Receiver& receiver, Layout layout) {
  const auto counts = host_copy<std::int32_t>(receiver.num_arrivals);
  const auto tokens = host_copy<std::int32_t>(receiver.arrival_token);
  const auto rows = host_copy<std::int32_t>(receiver.arrival_rows);
  const auto weights = host_copy<float>(receiver.arrival_weights);
  for (int s = 0; s < kRanks; ++s) {
    EXPECT_EQ(counts[static_cast<std::size_t>(s)], rows_of(s)) << s;
    for (int n = 0; n < rows_of(s); ++n) {
      const auto arrival = static_cast<std::size_t>(s * kTokens + n);
      EXPECT_EQ(tokens[arrival], token_of(s, n)) << s << " " << n;
      for (int k = 0; k < kTopk; ++k) {
        const std::size_t at = arrival * kTopk + static_cast<std::size_t>(k);
        const int row =
            is_local(id_of(s, n, k)) ? expected.row_of(s, n, k, is_expert_major(layout)) : -1;
        EXPECT_EQ(rows[at], row) << s << " " << n << " " << k;
        EXPECT_EQ(weights[at], weight_of(s, n, k)) << s << " " << n << " " << k;
      }
    }
  }
}

// Slots of rows; nobody empties what is tagged.
void expect_empty_slots(Receiver& receiver) {
  const auto words = host_copy<std::uint32_t>(receiver.window());
  const std::size_t begin = receiver.layout().set(kCall) / sizeof(words[0]);
  const std::size_t size = receiver.layout().marks_offset / sizeof(words[0]);
  const auto first = words.begin() + static_cast<std::ptrdiff_t>(begin);
  EXPECT_TRUE(std::all_of(first, first + static_cast<std::ptrdiff_t>(size),
                          [](std::uint32_t word) { return word == 0xFFFFFFFFu; }));
}

TEST(DispatchWindowTest, RowsOfFortySourcesLandWhereTheyBelong) {
  REQUIRE_GPU();
  for (const Layout layout :
       {Layout::kBatched, Layout::kExpanded, Layout::kCompact, Layout::kByRank}) {
    for (const int num_ctas : {1, 3, 132}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(layout)) + ", " + std::to_string(num_ctas));
      Receiver receiver(layout, num_ctas, 10'000'000'000);
      ASSERT_EQ(receiver.run().failure, static_cast<std::uint32_t>(WaitFailure::kNone));
      const Expected expected(layout);
      for (std::size_t e = 0; e < kLocal; ++e) {
        EXPECT_EQ(host_copy<std::int32_t>(receiver.num_rows)[e], expected.num_rows[e]) << e;
        if (!is_expert_major(layout)) continue;
        EXPECT_EQ(host_copy<std::int64_t>(receiver.first_row)[e], expected.first_row[e]) << e;
      }
      EXPECT_EQ(host_copy<std::int32_t>(receiver.total_rows)[0], expected.total);
      EXPECT_EQ(host_copy<std::uint64_t>(receiver.counter)[0], (kCall + 1) * kCallUnit);
      expect_rows(expected, receiver);
      expect_row_facts(expected, receiver, layout);
      expect_arrivals(expected, receiver, layout);
      expect_empty_slots(receiver);
    }
  }
}

struct LostWords {
  Missing missing;
  const char* what;
  bool names_token;
};

// Three CTAs: a warp has items after the one that fails. A source beyond a warp's lanes, and one
// within.
TEST(DispatchWindowTest, KernelEndsAndNamesTheSourceOfWhatIsMissing) {
  REQUIRE_GPU();
  for (const LostWords& lost : {LostWords{Missing::kAnnouncement, "no announcement from", false},
                                LostWords{Missing::kCounts, "no announcement from", false},
                                LostWords{Missing::kChoices, "no row ", false},
                                LostWords{Missing::kWeights, "no row ", true},
                                LostWords{Missing::kElements, "no row ", true}}) {
    for (const Layout layout : {Layout::kExpanded, Layout::kCompact}) {
      for (const int source : {1, 37}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(lost.missing)) + ", layout " +
                     std::to_string(static_cast<int>(layout)));
        ASSERT_EQ(rows_of(source), 1);
        const std::string from = "from rank " + std::to_string(source) + " within 0.2 s";
        Receiver receiver(layout, 3, 200'000'000, lost.missing, source);
        const WaitRecord record = receiver.run();
        ASSERT_EQ(record.failure, static_cast<std::uint32_t>(WaitFailure::kTimeout));
        EXPECT_EQ(record.call, kCall);
        const WaitFailureText text = describe(record, kRank, kRanks * kLocal);
        EXPECT_EQ(text.culprit, source);
        EXPECT_THAT(text.what, testing::HasSubstr(lost.what));
        EXPECT_THAT(text.what, testing::HasSubstr(from));
        if (lost.names_token) {
          EXPECT_EQ(record.token, token_of(source, 0));
        }
        // The call is over; a later one would find the rank failed.
        EXPECT_EQ(host_copy<std::uint64_t>(receiver.counter)[0], (kCall + 1) * kCallUnit);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
