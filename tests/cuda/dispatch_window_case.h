// SPDX-License-Identifier: Apache-2.0
//
// dispatch_window_case.h: the receiving half of a dispatch among 40 ranks, only one of which is
// real: the test fills its window with what all of them would send.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "switchyard/exchange.h"

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/exchange/grid.h"
#include "device_copy.h"
#include "exchange/push/wait_failure.h"

namespace switchyard::test {

inline constexpr int kRanks = 40;
inline constexpr int kRank = 5;
inline constexpr int kLocal = 2;
inline constexpr int kFirstLocal = kRank * kLocal;
inline constexpr int kTopk = 4;
inline constexpr int kTokens = 4;
inline constexpr int kHidden = kChunkElements + kVecElements;  // a chunk, and one more vector
inline constexpr int kRowWords = kHidden / 2;
inline constexpr int kRows = kRanks * kTokens * kLocal;
inline constexpr std::uint64_t kCall = 7;
inline constexpr std::uint32_t kCallMode = kTokens;
inline constexpr int kEmptyByte = 0xFF;
inline constexpr std::int32_t kUnset = 0x5A5A5A5A;

enum class Missing { kNothing, kAnnouncement, kCounts, kMode, kChoices, kWeights, kElements };

template <typename T>
std::vector<T> host_copy(const cuda::DeviceBuffer& buffer) {
  std::vector<T> values(buffer.size_bytes() / sizeof(T));
  cuda::check_cuda(
      cudaMemcpy(values.data(), buffer.data(), buffer.size_bytes(), cudaMemcpyDeviceToHost),
      "copy");
  return values;
}

inline cuda::DeviceBuffer unset(std::size_t words) {
  return device_copy(std::vector<std::int32_t>(words, kUnset));
}

inline PushLayout layout_of(Layout rows_layout) {
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

// What a source sends. For odd sources the n-th row is not the n-th token.
inline int rows_of(int source) { return source % 4; }
inline int token_of(int source, int n) {
  return source % 2 == 1 ? n + kTokens - rows_of(source) : n;
}
// k = 0 is an expert of this rank, k = 1 of another rank, k = 2 this rank's other expert in every
// other row; everything else is -1.
inline int id_of(int source, int n, int k) {
  const int first = (source + n) % kLocal;
  if (k == 0) return kFirstLocal + first;
  if (k == 1) return (kRank + 1 + source % (kRanks - 1)) % kRanks * kLocal;
  return k == 2 && n % 2 == 1 ? kFirstLocal + (1 - first) : -1;
}
inline bool is_local(int id) { return id >= kFirstLocal && id < kFirstLocal + kLocal; }
inline float weight_of(int source, int n, int k) {
  return static_cast<float>(source * 100 + n * 10 + k) + 0.5f;
}
inline std::uint32_t word_of(int source, int token, int i) {
  return static_cast<std::uint32_t>((source * 8 + token) * 65536 + i);
}

/// The bytes of a window that has received everything except one thing from one source.
class FilledWindow {
 public:
  FilledWindow(const PushLayout& layout, Missing missing, int of_source)
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
    if (missing != Missing::kMode) write_record(at + 3 * kRecordBytes, kCallMode);
  }
  std::uint32_t choice_of(int id, std::uint32_t (&counts)[kLocal]) const {
    const std::uint32_t place = is_local(id) ? counts[id - kFirstLocal]++ : 0;
    if (!layout_.shape.sends_routes) return static_cast<std::uint32_t>(id);
    if (!is_local(id)) return kNoRoute;
    return static_cast<std::uint32_t>(id - kFirstLocal) << layout_.place_bits | place;
  }
  // A lane's vector has 16 elements: the first halves of all lanes precede their second halves.
  void write_row(int s, int token, bool lacks_end) {
    constexpr int kVecWords = kVecElements / 2;
    constexpr int kUnitWords = 4;
    for (int i = 0; i < (lacks_end ? kRowWords - 1 : kRowWords); ++i) {
      const int vector = i / kVecWords;
      const int unit = i % kVecWords / kUnitWords * kLanes + vector % kLanes;
      const std::size_t at =
          layout_.elements(layout_.row(kCall, s, token), vector / kLanes) +
          static_cast<std::size_t>(unit * kUnitWords + i % kUnitWords) * sizeof(std::uint32_t);
      const std::uint32_t word = word_of(s, token, i);
      std::memcpy(bytes_.data() + at, &word, sizeof(word));
    }
  }

  const PushLayout& layout_;
  std::vector<std::byte> bytes_;
};

/// Everything that a call writes.
struct Results {
  cuda::DeviceBuffer counter = device_copy<std::uint64_t>({kCall * cuda::kCallUnit, 0, 0, 0});
  cuda::DeviceBuffer num_arrivals = unset(kRanks);
  cuda::DeviceBuffer arrival_token = unset(kRanks * kTokens);
  cuda::DeviceBuffer arrival_rows = unset(kRanks * kTokens * kTopk);
  cuda::DeviceBuffer arrival_weights = unset(kRanks * kTokens * kTopk);
  cuda::DeviceBuffer rows = unset(kRows * kRowWords);
  cuda::DeviceBuffer num_rows = unset(kLocal);
  cuda::DeviceBuffer first_row = device_copy<std::int64_t>({-1, -1});
  cuda::DeviceBuffer total_rows = unset(1);
  cuda::DeviceBuffer row_ids = unset(kRows * kTopk);
  cuda::DeviceBuffer row_weights = unset(kRows * kTopk);
};

/// Requests receivers; CTAs may be small when the rank has the GPU for itself.
inline GridRequest receivers(int num_ctas, bool has_whole_gpu) {
  return {num_ctas, false, true, has_whole_gpu};
}

/// The real rank.
class Receiver {
 public:
  Receiver(Layout rows_layout, const GridRequest& grid, std::uint64_t timeout_ns,
           Missing missing = Missing::kNothing, int of_source = 0)
      : layout_(layout_of(rows_layout)),
        window_(device_copy(FilledWindow(layout_, missing, of_source).bytes())) {
    args_.layout = layout_;
    args_.ownership = cuda::KernelOwnership(ExpertOwnership{kRanks * kLocal, kRanks});
    args_.rank = kRank;
    args_.mode = kCallMode;
    args_.num_topk = kTopk;
    args_.rows_layout = rows_layout;
    args_.watch = {&words_.as<WatchWords>()->record, &words_.as<WatchWords>()->abort_word,
                   failed_.as<std::uint32_t>(), timeout_ns};
    args_.windows.base[kRank] = window_.data();
    set_results(rows_layout);
    args_.grid = cuda::dispatch_grid(grid, layout_, 0);
  }

  cuda::WaitRecord run() {
    cuda::check_cuda(cudaMemset(failed_.data(), 1, failed_.size_bytes()), "load");
    cuda::launch_dispatch(args_, cuda::Phases::kNone, false, nullptr);
    cuda::check_cuda(cudaMemset(failed_.data(), 0, failed_.size_bytes()), "load");
    cuda::launch_dispatch(args_, cuda::Phases::kReceive, false, nullptr);
    cuda::check_cuda(cudaDeviceSynchronize(), "dispatch");
    return words_.as<WatchWords>()->record;
  }

  const PushLayout& layout() const { return layout_; }
  const cuda::DeviceBuffer& window() const { return window_; }
  const Results& results() const { return results_; }

 private:
  void set_results(Layout rows_layout) {
    args_.state.counter = results_.counter.as<std::uint64_t>();
    args_.state.num_arrivals = results_.num_arrivals.as<std::int32_t>();
    args_.state.arrival_token = results_.arrival_token.as<std::int32_t>();
    args_.state.arrival_rows = results_.arrival_rows.as<std::int32_t>();
    args_.state.arrival_weights = results_.arrival_weights.as<float>();
    cuda::ReceiveBuffer& to = args_.received;
    to.rows = results_.rows.data();
    to.row_bytes = 2 * kHidden;
    to.are_aligned = true;
    to.capacity = rows_layout == Layout::kBatched ? kRanks * kTokens
                                                  : std::numeric_limits<std::int64_t>::max();
    to.source_rows = rows_layout == Layout::kByRank ? kTokens : 0;
    to.num_rows = results_.num_rows.as<std::int32_t>();
    to.total_rows = results_.total_rows.as<std::int32_t>();
    to.row_weights = results_.row_weights.as<float>();
    if (is_expert_major(rows_layout)) {
      to.first_row = results_.first_row.as<std::int64_t>();
    } else {
      to.row_ids = results_.row_ids.as<std::int32_t>();
    }
  }

  PushLayout layout_;
  cuda::DeviceBuffer window_;
  Results results_;
  cuda::DeviceBuffer failed_ = device_copy<std::uint32_t>({0});
  cuda::PinnedBuffer words_{sizeof(WatchWords)};
  cuda::DispatchArgs args_;
};

}  // namespace switchyard::test
