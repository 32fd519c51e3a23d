// SPDX-License-Identifier: Apache-2.0
//
// A returned row with words that escape reserved ones, whose marks never arrive: the error names
// the rank that should have sent them.

#include <cstdint>
#include <vector>

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/exchange/grid.h"
#include "cuda/exchange/wire_form.h"
#include "device_copy.h"
#include "exchange/push/wait_failure.h"
#include "gpu.h"

namespace switchyard {
namespace {

using test::device_copy;

constexpr int kRanks = 4;
constexpr int kTopk = 4;
constexpr std::int64_t kTokens = 2;
constexpr std::int64_t kHidden = 512;
constexpr std::uint64_t kCall = 7;
constexpr int kEmptyByte = 0xFF;
constexpr std::uint32_t kEscapedWord = 0xFFFFFFFEu;

PushLayout layout_of(const QuantScheme& wire) {
  PushShape shape;
  shape.max_tokens = kTokens;
  shape.hidden = kHidden;
  shape.num_ranks = kRanks;
  shape.num_topk = kTopk;
  shape.return_element_bits = bits_of(wire.dtype);
  shape.return_scale_bytes = cuda::return_scale_bytes(wire);
  return make_push_layout(shape);
}

/// The receiving half of a combine on rank 0. Only token 1 has partial sums: zeros from rank 2, and
/// a row of escaped words from rank 3.
class LostMark {
 public:
  LostMark(const QuantScheme& wire, bool is_aligned) : layout_(layout_of(wire)) {
    window_ = cuda::DeviceBuffer(layout_.total_bytes);
    cuda::check_cuda(cudaMemset(window_.data(), kEmptyByte, window_.size_bytes()), "fill");
    write_row(0, 0);
    write_row(1, kEscapedWord);
    args_.layout = layout_;
    args_.num_topk = kTopk;
    args_.wire = wire;
    args_.sums.num_tokens = kTokens;
    args_.state.counter = counter_.as<std::uint64_t>();
    args_.state.num_partials = num_terms_.as<std::int32_t>();
    args_.state.columns = columns_.as<std::int32_t>();
    args_.state.partial_ranks = term_ranks_.as<std::int32_t>();
    args_.watch = {&words_.as<WatchWords>()->record, &words_.as<WatchWords>()->abort_word,
                   failed_.as<std::uint32_t>(), 200'000'000};
    args_.sums.data = output_.data();
    args_.sums.stride = 2 * kHidden;
    args_.sums.are_aligned = is_aligned;
    args_.windows.base[0] = window_.data();
    args_.grid = cuda::combine_grid({8, false, true, true}, layout_, kTokens);
  }

  cuda::WaitRecord run() {
    cuda::launch_combine(args_, cuda::Phases::kReceive, false, nullptr);
    cuda::check_cuda(cudaDeviceSynchronize(), "combine");
    return words_.as<WatchWords>()->record;
  }

 private:
  void write_row(int column, std::uint32_t word) {
    const cuda::DeviceBuffer row =
        device_copy(std::vector<std::uint32_t>(layout_.return_stride / sizeof(word), word));
    cuda::check_cuda(cudaMemcpy(window_.data() + layout_.returned(1, column), row.data(),
                                row.size_bytes(), cudaMemcpyDeviceToDevice),
                     "row");
  }

  PushLayout layout_;
  cuda::DeviceBuffer window_;
  cuda::DeviceBuffer counter_ =
      device_copy<std::uint64_t>({(kCall + 1) * cuda::kCallUnit, 0, 0, 0});
  cuda::DeviceBuffer num_terms_ = device_copy<std::int32_t>({0, 2});
  cuda::DeviceBuffer columns_ = device_copy<std::int32_t>({0, 0, 0, 0, 0, 1, 0, 0});
  cuda::DeviceBuffer term_ranks_ = device_copy<std::int32_t>({0, 0, 0, 0, 2, 3, 0, 0});
  cuda::DeviceBuffer failed_ = device_copy<std::uint32_t>({0});
  cuda::DeviceBuffer output_{2 * kTokens * kHidden};
  cuda::PinnedBuffer words_{sizeof(WatchWords)};
  cuda::CombineArgs args_;
};

TEST(LostMarkTest, RankThatShouldHaveSentItIsNamed) {
  REQUIRE_GPU();
  for (const QuantScheme& wire : {schemes::kFp8Block, schemes::kMxfp8}) {
    SCOPED_TRACE(name_of(wire));
    for (const bool is_aligned : {false, true}) {  // selects different kernels
      const cuda::WaitRecord record = LostMark(wire, is_aligned).run();
      ASSERT_EQ(record.failure, static_cast<std::uint32_t>(cuda::WaitFailure::kTimeout));
      const WaitFailureText text = describe(record, 0, 8);
      EXPECT_EQ(text.culprit, 3);
      EXPECT_EQ(text.what, "rank 0 had no row 1 from rank 3 within 0.2 s in combine receive");
    }
  }
}

}  // namespace
}  // namespace switchyard
