// SPDX-License-Identifier: Apache-2.0
//
// quantize_launch.cuh: selects the kernel for a scheme, for rows of one dtype. Each dtype has its
// own source file, so that they compile in parallel.
#pragma once

#include <algorithm>

#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/permute/row_grid.h"
#include "cuda/quantize/quantize_kernels.cuh"
#include "cuda/quantize/quantize_rows.h"
#include "cuda/quantize/quantize_table.cuh"
#include "cuda/quantize/quantize_wide.cuh"

namespace switchyard::cuda {

inline dim3 grid_of_rows(std::int64_t num_experts, std::int64_t capacity, bool has_counts) {
  // One block per row; with counts, where most rows may be empty, fewer blocks that stride.
  constexpr std::int64_t kBlocksInFlight = 4096;
  const std::int64_t want = has_counts ? cdiv(kBlocksInFlight, num_experts) : capacity;
  const std::int64_t rows = std::min({want, capacity, std::int64_t{0x7FFFFFFF}});
  return {static_cast<unsigned>(rows),
          static_cast<unsigned>(std::min<std::int64_t>(num_experts, 65535)), 1};
}

/// Whole warps, enough to cover a row in one step unless that exceeds `max_threads`.
inline unsigned threads_of_row(std::int64_t hidden, unsigned max_threads) {
  const std::int64_t units = hidden / (kUnit * kUnits) + 1;
  const bool is_full = hidden % (kUnit * kUnits) == 0 && units > 1;
  const std::int64_t threads = (is_full ? units - 1 : units);
  return static_cast<unsigned>(
      std::min<std::int64_t>((threads + 31) / 32 * 32, std::int64_t{max_threads}));
}

/// The fewest whole warps that take no more steps of `elements` per thread than `max_threads`.
inline unsigned wide_threads(std::int64_t hidden, std::int64_t elements, std::int64_t max_threads) {
  const std::int64_t units = cdiv(hidden, elements);
  const std::int64_t num_steps = cdiv(units, max_threads);
  return static_cast<unsigned>(align_up<std::int64_t>(cdiv(units, num_steps), 32));
}

/// Launches the kernels for one kind of row.
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

  void max_of_experts() const {
    if (is_wide(kInputElements, 1)) {
      launch_wide(max_of_experts_wide_kernel<Source>, 32, kWideThreads, true);
    } else {
      launch(max_of_experts_kernel<Source>, kMaxThreads);
    }
  }

 private:
  static constexpr unsigned kMaxThreads = 256;
  static constexpr unsigned kMaxTokenThreads = 512;

  static constexpr int kInputElements = 16 / sizeof(ElementBits<Source::kInput>);

  // Whether 16-byte loads of `elements` cover rows, and their codes are aligned to `code_bytes`.
  bool is_wide(std::int64_t elements, std::int64_t code_bytes) const {
    constexpr std::int64_t kSize = sizeof(ElementBits<Source::kInput>);
    constexpr std::int64_t kMaxHidden = std::int64_t{1} << 30;
    const RowMemory& x = job_.x;
    return job_.hidden > 0 && job_.hidden <= kMaxHidden && job_.hidden % elements == 0 &&
           has_aligned_rows(x.data, x.row_stride * kSize, 2, 16) &&
           x.expert_stride * kSize % 16 == 0 &&
           has_aligned_rows(job_.q, job_.q_row_bytes, 2, code_bytes);
  }

  // `follows`: the kernel begins with follow_kernel, so it may be launched programmatically.
  void launch_wide(void (*kernel)(QuantizeJob), int elements, unsigned max_threads,
                   bool follows = false) const {
    if (job_.num_experts == 0 || job_.capacity == 0) return;
    const dim3 grid = grid_of_rows(job_.num_experts, job_.capacity, job_.counts != nullptr);
    LaunchShape shape;
    shape.ctas = static_cast<int>(grid.x);
    shape.parts = static_cast<int>(grid.y);
    shape.threads = static_cast<int>(wide_threads(job_.hidden, elements, max_threads));
    shape.programmatic = follows && has_programmatic_launch();
    shape.stream = stream_;
    launch_kernel(kernel, shape, "quantize", job_);
  }

  template <typename Rule>
  bool is_wide() const {
    using Shape = WideShape<Rule, Source>;
    return is_wide(Shape::kElements, std::min(16, Shape::kCodeBytesOfUnit));
  }

  // Blocks of the size that the rule is specialized for.
  template <typename Rule>
  void named_blocks() const {
    using Shape = WideShape<Rule, Source>;
    if constexpr (kHasTable<Rule, Source>) {
      const TableShape shape(job_.hidden, Shape::kElements);
      if (is_wide<Rule>() && fits_table(shape)) return launch_table<Rule>(shape);
    }
    if (is_wide<Rule>()) {
      launch_wide(quantize_wide_kernel<Rule, Source>, Shape::kElements * Shape::kUnits,
                  kManyThreads, Rule::kIsGiven);
    } else {
      launch(quantize_blocks_kernel<Rule, Source>, kMaxThreads);
    }
  }

  // Whether a row fits one thread block and there are enough rows to amortize its table.
  bool fits_table(const TableShape& shape) const {
    return job_.num_experts == 1 && job_.counts == nullptr && job_.given_row_stride == 0 &&
           shape.rows_at_once > 0 &&
           job_.capacity >= kTableRounds * shape.rows_at_once * num_multiprocessors();
  }

  template <typename Rule>
  void launch_table(const TableShape& shape) const {
    LaunchShape launch;
    launch.ctas = num_multiprocessors();
    launch.threads = static_cast<int>(shape.rows_at_once * shape.row_threads);
    launch.stream = stream_;
    launch_kernel(quantize_table_kernel<Rule, Source>, launch, "quantize", job_, shape.row_threads);
  }

  void launch(void (*kernel)(QuantizeJob), unsigned max_threads) const {
    if (job_.num_experts == 0 || job_.capacity == 0) return;
    const dim3 grid = grid_of_rows(job_.num_experts, job_.capacity, job_.counts != nullptr);
    kernel<<<grid, threads_of_row(job_.hidden, max_threads), 0, stream_>>>(job_);
    check_launch("quantize");
  }

  template <typename Rule>
  void blocks() const {
    if (Rule::kIsGiven || job_.scheme.block == Rule::kLanes * kUnit) {
      named_blocks<Rule>();
    } else if constexpr (Rule::kLanes == 16) {
      launch(quantize_any_blocks_kernel<Rule, Source>, kMaxThreads);
    }
  }

  template <typename Rule>
  void tokens() const {
    using Shape = WideShape<Rule, Source>;
    constexpr int kElements = Shape::kElements * Shape::kUnits;
    constexpr unsigned kThreads = kTokenThreads<Source>;
    if (is_wide<Rule>() && job_.hidden <= std::int64_t{kElements} * kThreads) {
      launch_wide(quantize_wide_tokens_kernel<Rule, Source>, kElements, kThreads);
    } else {
      launch(quantize_tokens_kernel<Rule, Source>, kMaxTokenThreads);
    }
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

  template <DType kOutput>
  void convert_to() const {
    if (is_wide(kUnit, 16)) {
      launch_wide(convert_wide_kernel<kOutput, Source>, 32, kWideThreads);
    } else {
      launch(convert_kernel<kOutput, Source>, kMaxThreads);
    }
  }

  void convert() const {
    switch (job_.scheme.dtype) {
      case DType::kBF16: return convert_to<DType::kBF16>();
      case DType::kF16: return convert_to<DType::kF16>();
      default: return convert_to<DType::kF32>();
    }
  }

  QuantizeJob job_;
  cudaStream_t stream_;
};

/// Defines the functions of quantize_rows.h for one dtype.
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

}  // namespace switchyard::cuda
