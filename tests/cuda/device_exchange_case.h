// SPDX-License-Identifier: Apache-2.0
//
// device_exchange_case.h: the inputs of a GPU exchange test, in host memory and on the GPU.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/exchange.h"

#include "core/random.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "quant/bf16.h"

namespace switchyard::test {

struct Case {
  std::string name;
  int num_ranks = 2;
  ExchangeConfig config;
  std::vector<std::int64_t> num_tokens;  ///< per rank, repeated if shorter
  double none_share = 0.0;
  std::int32_t only_expert = -1;
  bool all_ones = false;  ///< tokens and results contain many words that the wire reserves
  DType token_dtype = DType::kBF16;
  bool splits_phases = false;
  int num_calls = 3;
  std::int64_t max_tokens = 0;  ///< option of every call
  bool adds_shared = false;
  bool returns_weights = false;  ///< every combine returns weights of rows
  bool goes_again = false;       ///< after each call also: dispatch_again, reopen, and routing only
  bool ids_are_i32 = false;      ///< type of the ids on the GPU
  DType result_dtype = DType::kBF16;  ///< of the experts' rows, and of every other call's output
  bool pads_output = false;           ///< the output has a row stride
  bool has_tiny = false;              ///< zeros, denormals, and weights that make them vanish
};

inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// GPU memory for one rank. Ranks that share a GPU must not allocate while kernels run: the runtime
/// would wait for those kernels, and they wait for this rank.
class Arena {
 public:
  Arena() : memory_(kBytes) {}
  std::byte* allocate(std::size_t bytes) {
    const std::size_t at = used_;
    used_ += (bytes + 511) / 256 * 256;
    if (used_ > kBytes) throw std::bad_alloc();
    return memory_.data() + at;
  }
  void clear() { used_ = 0; }

 private:
  static constexpr std::size_t kBytes = std::size_t{640} << 20;
  DeviceBuffer memory_;
  std::size_t used_ = 0;
};

/// Host bytes and their copy on the GPU.
class Both {
 public:
  explicit Both(std::size_t bytes = 0) : host_(bytes) {}
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(host_.data());
  }
  std::size_t size() const { return host_.size(); }
  TensorView host(DType dtype, std::initializer_list<std::int64_t> shape) const {
    return TensorView(host_.data(), dtype, shape);
  }
  TensorView device(Arena& arena, DType dtype, std::initializer_list<std::int64_t> shape) {
    std::byte* to = arena.allocate(host_.size());
    check_cuda(cudaMemcpy(to, host_.data(), host_.size(), cudaMemcpyHostToDevice), "up");
    // Copies from pageable memory may still be under way when cudaMemcpy returns.
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "up");
    return TensorView(to, dtype, shape);
  }

 private:
  std::vector<std::byte> host_;
};

inline std::vector<std::byte> download(const TensorView& view) {
  std::vector<std::byte> bytes(view.num_bytes());
  check_cuda(cudaMemcpy(bytes.data(), view.data(), bytes.size(), cudaMemcpyDeviceToHost), "down");
  return bytes;
}

inline std::size_t bytes_of(DType dtype, std::int64_t count) {
  return static_cast<std::size_t>(count * bits_of(dtype) / 8);
}

// Fills with values from many binades, some of them special, or with words that the wire reserves.
inline void fill(void* to, DType dtype, std::int64_t count, std::uint64_t seed, bool all_ones,
                 bool has_tiny = false) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    const auto x = static_cast<float>(random_normal(seed, n) * (1 << random_bits(seed + 1, n) % 7));
    std::uint32_t bits = bits_from_f32(x);
    if (all_ones && random_bits(seed + 2, n / 3) % 3 == 0) {
      bits = random_bits(seed + 3, n) % 4 == 0 ? 0xFFFEFFFEu : 0xFFFFFFFFu;
    }
    if (has_tiny && random_bits(seed + 8, n) % 2 == 0) {
      const std::uint64_t random = random_bits(seed + 9, n);
      const std::uint32_t sign = random % 2 == 0 ? 0 : kF32SignBit;
      bits = sign | (random % 3 == 0 ? 0 : 1 + static_cast<std::uint32_t>(random >> 8 & 3)) << 16;
      if (dtype == DType::kF32) bits = sign | (bits & ~kF32SignBit) >> 16;
    }
    if (dtype == DType::kF32) {
      static_cast<std::uint32_t*>(to)[i] = bits;
    } else {
      static_cast<std::uint16_t*>(to)[i] = all_ones && bits >= 0xFFFE0000u
                                               ? static_cast<std::uint16_t>(bits >> 16 | (bits & 1))
                                               : bf16_from_f32(f32_from_bits(bits));
    }
  }
}

struct Input {
  std::int64_t num_tokens = 0;
  Both tokens;
  Both ids;
  Both weights;
};

inline Input make_input(const Case& c, int rank, int call, int salt = 0) {
  const ExchangeConfig& config = c.config;
  const auto seed = static_cast<std::uint64_t>(1000 * call + 10 * rank);
  Input in;
  in.num_tokens = c.num_tokens[static_cast<std::size_t>(rank + call) % c.num_tokens.size()];
  in.tokens = Both(bytes_of(c.token_dtype, in.num_tokens * config.hidden));
  in.ids = Both(static_cast<std::size_t>(in.num_tokens * config.num_topk) * 8);
  in.weights = Both(static_cast<std::size_t>(in.num_tokens * config.num_topk) * 4);
  const std::uint64_t salted = seed + static_cast<std::uint64_t>(100'000 * salt);
  fill(in.tokens.as<void>(), c.token_dtype, in.num_tokens * config.hidden, salted, c.all_ones);
  for (std::int64_t t = 0; t < in.num_tokens; ++t) {
    std::vector<bool> used(static_cast<std::size_t>(config.num_experts));
    for (std::int64_t k = 0; k < config.num_topk; ++k) {
      const auto at = static_cast<std::uint64_t>(t * config.num_topk + k);
      std::int64_t id = c.only_expert;
      if (id < 0) {
        id = static_cast<std::int64_t>(random_bits(seed + 4, at) %
                                       static_cast<std::uint64_t>(config.num_experts));
      } else if (k > 0) {
        id = -1;
      }
      if (random_uniform(seed + 5, at) < c.none_share) id = -1;
      const bool wants_distinct = config.layout == Layout::kBatched;
      while (id >= 0 && wants_distinct && used[static_cast<std::size_t>(id)]) {
        id = (id + 1) % config.num_experts;
      }
      if (id >= 0) used[static_cast<std::size_t>(id)] = true;
      in.ids.as<std::int64_t>()[at] = id;
      const double weight = random_uniform(salted + 6, at);
      in.weights.as<float>()[at] = static_cast<float>(c.has_tiny ? weight * 0x1p-24 : weight);
    }
  }
  return in;
}

inline void expect_rows_equal(const Case& c, const std::vector<RowOrigin>& origins,
                              std::size_t row_bytes, const void* want,
                              const std::vector<std::byte>& got, const char* what) {
  for (const RowOrigin& origin : origins) {
    const auto at = static_cast<std::size_t>(origin.row) * row_bytes;
    ASSERT_LE(at + row_bytes, got.size()) << c.name << " " << what;
    const auto* want_row = static_cast<const std::byte*>(want) + at;
    if (std::memcmp(want_row, got.data() + at, row_bytes) == 0) continue;
    std::size_t b = 0;
    while (want_row[b] == got[at + b]) ++b;
    FAIL() << c.name << ": " << what << " of row " << origin.row << " (rank " << origin.rank
           << ", token " << origin.token << ", k " << origin.k << ") differ from byte " << b
           << " on: want " << static_cast<int>(want_row[b]) << ", got "
           << static_cast<int>(got[at + b]);
  }
}

inline ExchangeConfig config_of(Layout layout, const QuantScheme& scheme, Reduce reduce,
                                std::int64_t hidden = 1024) {
  ExchangeConfig config;
  config.num_experts = 12;
  config.num_topk = 4;
  config.hidden = hidden;
  config.max_tokens_per_rank = 37;
  config.layout = layout;
  config.scheme = scheme;
  config.reduce = reduce;
  return config;
}

}  // namespace switchyard::test
