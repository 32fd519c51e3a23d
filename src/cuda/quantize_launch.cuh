// SPDX-License-Identifier: Apache-2.0
//
// quantize_launch.cuh: which kernel serves which scheme, for rows of one dtype. Each dtype is a
// source file of its own, so that they compile side by side.
#pragma once

#include <algorithm>

#include "core/round_up.h"
#include "cuda/check.h"
#include "cuda/quantize_kernels.cuh"
#include "cuda/quantize_rows.h"

namespace switchyard {

inline dim3 grid_of_rows(std::int64_t num_experts, std::int64_t capacity, bool has_counts) {
  // Without counts a block a row; with counts most rows may be empty, so blocks walk.
  constexpr std::int64_t kBlocksInFlight = 4096;
  const std::int64_t want = has_counts ? cdiv(kBlocksInFlight, num_experts) : capacity;
  const std::int64_t rows = std::min({want, capacity, std::int64_t{0x7FFFFFFF}});
  return {static_cast<unsigned>(rows),
          static_cast<unsigned>(std::min<std::int64_t>(num_experts, 65535)), 1};
}

/// Whole warps, enough for a row in one go if `max_threads` are.
inline unsigned threads_of_row(std::int64_t hidden, unsigned max_threads) {
  const std::int64_t units = hidden / (kUnit * kUnits) + 1;
  const bool is_full = hidden % (kUnit * kUnits) == 0 && units > 1;
  const std::int64_t threads = (is_full ? units - 1 : units);
  return static_cast<unsigned>(
      std::min<std::int64_t>((threads + 31) / 32 * 32, std::int64_t{max_threads}));
}

/// The launches for one kind of rows.
template <typename Source>
class RowLauncher {
 public:
  RowLauncher(const QuantizeJob& job, Stream stream) : job_(job), stream_(stream.get()) {}

  void quantize() const {
    const QuantScheme& scheme = job_.scheme;
    if (!scheme.is_quantized()) return convert();
    const bool is_i8 = scheme.dtype == DType::kI8;
    const bool is_given = scheme.group == ScaleGroup::kToken && job_.given != nullptr;
    if (scheme.group == ScaleGroup::kTensor || is_given) {
      return is_i8 ? blocks<GivenRule<Codec::kI8HalfEven>>() : blocks<GivenRule<Codec::kE4M3>>();
    }
    if (scheme.group == ScaleGroup::kToken) {
      return is_i8 ? tokens<TokenRule<Codec::kI8HalfAway>>() : tokens<TokenRule<Codec::kE4M3>>();
    }
    if (scheme.rule == ScaleRule::kMx || scheme.rule == ScaleRule::kTwoLevel) return small_blocks();
    if (is_i8) return blocks<BlockRule<Codec::kI8Truncate, ScaleRule::kDivide>>();
    if (job_.is_fused) return blocks<BlockRule<Codec::kE4M3, ScaleRule::kDivide, true>>();
    if (scheme.rule == ScaleRule::kMultiply) {
      return blocks<BlockRule<Codec::kE4M3, ScaleRule::kMultiply>>();
    }
    blocks<BlockRule<Codec::kE4M3, ScaleRule::kDivide>>();
  }

  void max_of_experts() const { launch(max_of_experts_kernel<Source>, kMaxThreads); }

 private:
  static constexpr unsigned kMaxThreads = 256;
  static constexpr unsigned kMaxTokenThreads = 512;

  void launch(void (*kernel)(QuantizeJob), unsigned max_threads) const {
    if (job_.num_experts == 0 || job_.capacity == 0) return;
    const dim3 grid = grid_of_rows(job_.num_experts, job_.capacity, job_.counts != nullptr);
    kernel<<<grid, threads_of_row(job_.hidden, max_threads), 0, stream_>>>(job_);
    check_launch("quantize");
  }

  template <typename Rule>
  void blocks() const {
    if constexpr (Rule::kIsGiven) {
      launch(quantize_blocks_kernel<Rule, Source>, kMaxThreads);
    } else if (job_.scheme.block == Rule::kLanes * kUnit) {
      launch(quantize_blocks_kernel<Rule, Source>, kMaxThreads);
    } else if constexpr (Rule::kLanes == 16) {
      launch(quantize_any_blocks_kernel<Rule, Source>, kMaxThreads);
    }
  }

  template <typename Rule>
  void tokens() const {
    launch(quantize_tokens_kernel<Rule, Source>, kMaxTokenThreads);
  }

  void small_blocks() const {
    switch (codec_of(job_.scheme)) {
      case Codec::kE4M3: return blocks<BlockRule<Codec::kE4M3, ScaleRule::kMx>>();
      case Codec::kE2M1:
        return job_.scheme.rule == ScaleRule::kMx
                   ? blocks<BlockRule<Codec::kE2M1, ScaleRule::kMx>>()
                   : blocks<BlockRule<Codec::kE2M1, ScaleRule::kTwoLevel>>();
      case Codec::kE2M3:
        if constexpr (!Source::kActivates) blocks<BlockRule<Codec::kE2M3, ScaleRule::kMx>>();
        return;
      default:
        if constexpr (!Source::kActivates) blocks<BlockRule<Codec::kE3M2, ScaleRule::kMx>>();
        return;
    }
  }

  void convert() const {
    switch (job_.scheme.dtype) {
      case DType::kBF16: return launch(convert_kernel<DType::kBF16, Source>, kMaxThreads);
      case DType::kF16: return launch(convert_kernel<DType::kF16, Source>, kMaxThreads);
      default: return launch(convert_kernel<DType::kF32, Source>, kMaxThreads);
    }
  }

  QuantizeJob job_;
  cudaStream_t stream_;
};

/// The definitions of quantize_rows.h for one dtype.
template <DType kInput>
void quantize_rows_of(const QuantizeJob& job, Stream stream) {
  if (job.is_activated) {
    RowLauncher<RowSource<kInput, true>>(job, stream).quantize();
  } else {
    RowLauncher<RowSource<kInput, false>>(job, stream).quantize();
  }
}

template <DType kInput>
void max_of_experts_of(const QuantizeJob& job, Stream stream) {
  RowLauncher<RowSource<kInput, false>>(job, stream).max_of_experts();
}

}  // namespace switchyard
