// SPDX-License-Identifier: Apache-2.0
//
// The exchange between GPUs gives what the exchange between CPUs gives, bit for bit: rows, scales,
// places, counts, weights and sums. Ranks are threads; with fewer GPUs than ranks some share one.

#include "switchyard/device_exchange.h"

#include <cstring>
#include <string>
#include <vector>

#include "switchyard/exchange.h"

#include "core/random.h"
#include "cuda/check.h"
#include "cuda/memory.h"
#include "gpus.h"
#include "quant/bf16.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::run_ranks;

struct Case {
  std::string name;
  int num_ranks = 2;
  ExchangeConfig config;
  std::vector<std::int64_t> num_tokens;  ///< of each rank; shorter: repeated
  double none_share = 0.0;
  std::int32_t only_expert = -1;
  bool all_ones = false;  ///< tokens and results full of words that the wire reserves
  DType token_dtype = DType::kBF16;
  bool splits_phases = false;
  int num_calls = 3;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// GPU memory for one rank. Ranks that share a GPU must not allocate while kernels run: the runtime
/// would wait for kernels that wait for the rank.
class Arena {
 public:
  Arena() : memory_(kBytes) {}
  std::byte* take(std::size_t bytes) {
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
    std::byte* to = arena.take(host_.size());
    check_cuda(cudaMemcpy(to, host_.data(), host_.size(), cudaMemcpyHostToDevice), "up");
    // Of pageable memory the copy may still be under way.
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "up");
    return TensorView(to, dtype, shape);
  }

 private:
  std::vector<std::byte> host_;
};

std::vector<std::byte> download(const TensorView& view) {
  std::vector<std::byte> bytes(view.num_bytes());
  check_cuda(cudaMemcpy(bytes.data(), view.data(), bytes.size(), cudaMemcpyDeviceToHost), "down");
  return bytes;
}

std::size_t bytes_of(DType dtype, std::int64_t count) {
  return static_cast<std::size_t>(count * bits_of(dtype) / 8);
}

// Values from many binades, some special, or patterns that the wire reserves.
void fill(void* to, DType dtype, std::int64_t count, std::uint64_t seed, bool all_ones) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    const auto x = static_cast<float>(random_normal(seed, n) * (1 << random_bits(seed + 1, n) % 7));
    std::uint32_t bits = bits_from_f32(x);
    if (all_ones && random_bits(seed + 2, n / 3) % 3 == 0) {
      bits = random_bits(seed + 3, n) % 4 == 0 ? 0xFFFEFFFEu : 0xFFFFFFFFu;
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

Input make_input(const Case& c, int rank, int call) {
  const ExchangeConfig& config = c.config;
  const auto seed = static_cast<std::uint64_t>(1000 * call + 10 * rank);
  Input in;
  in.num_tokens = c.num_tokens[static_cast<std::size_t>(rank + call) % c.num_tokens.size()];
  in.tokens = Both(bytes_of(c.token_dtype, in.num_tokens * config.hidden));
  in.ids = Both(static_cast<std::size_t>(in.num_tokens * config.num_topk) * 8);
  in.weights = Both(static_cast<std::size_t>(in.num_tokens * config.num_topk) * 4);
  fill(in.tokens.as<void>(), c.token_dtype, in.num_tokens * config.hidden, seed, c.all_ones);
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
      in.weights.as<float>()[at] = static_cast<float>(random_uniform(seed + 6, at));
    }
  }
  return in;
}

void expect_rows_equal(const Case& c, const std::vector<RowOrigin>& origins, std::size_t row_bytes,
                       const void* want, const std::vector<std::byte>& got, const char* what) {
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

class RankRun {
 public:
  RankRun(const Group& group, const Case& c)
      : c_(c),
        config_(with_worst_case(c.config)),
        group_(group),
        cpu_(group, config_),
        gpu_(group, config_) {}

  void run() {
    for (int call = 0; call < c_.num_calls; ++call) run_call(call);
    gpu_.check();
  }

 private:
  static ExchangeConfig with_worst_case(ExchangeConfig config) {
    config.worst_case_rows = true;
    return config;
  }

  void run_call(int call) {
    arena_.clear();
    const std::int64_t topk = config_.num_topk;
    Input in = make_input(c_, group_.rank(), call);
    const std::int64_t num_tokens = in.num_tokens;
    const float global_scale = 300.0f;
    Both scale(4);
    *scale.as<float>() = global_scale;
    const bool needs_scale =
        config_.scheme.group == ScaleGroup::kTensor || config_.scheme.needs_tensor_scale();
    const bool has_weights = config_.sends_weights || config_.reduce == Reduce::kPerExpert;

    DispatchOptions cpu_options;
    DeviceDispatchOptions gpu_options;
    if (needs_scale) cpu_options.tensor_scale = scale.host(DType::kF32, {1});
    if (needs_scale) gpu_options.tensor_scale = scale.device(arena_, DType::kF32, {1});
    const Dispatched want = cpu_.dispatch(
        in.tokens.host(c_.token_dtype, {num_tokens, config_.hidden}),
        in.ids.host(DType::kI64, {num_tokens, topk}),
        has_weights ? in.weights.host(DType::kF32, {num_tokens, topk}) : TensorView{}, cpu_options);
    const TensorView tokens =
        in.tokens.device(arena_, c_.token_dtype, {num_tokens, config_.hidden});
    const TensorView ids = in.ids.device(arena_, DType::kI64, {num_tokens, topk});
    const TensorView weights =
        has_weights ? in.weights.device(arena_, DType::kF32, {num_tokens, topk}) : TensorView{};
    DeviceDispatched got;
    if (c_.splits_phases) {
      const DeviceHandle handle =
          gpu_.dispatch_send(tokens, ids, weights, stream_.get(), gpu_options);
      got = gpu_.dispatch_receive(handle, stream_.get());
    } else {
      got = gpu_.dispatch(tokens, ids, weights, stream_.get(), gpu_options);
    }
    check_cuda(cudaStreamSynchronize(stream_.get()), "dispatch");
    gpu_.check();
    const std::vector<RowOrigin> origins = cpu_.row_origins(want.handle);
    compare(want, got, origins);
    combine(want, got, origins, num_tokens, call);
  }

  void compare(const Dispatched& want, const DeviceDispatched& got,
               const std::vector<RowOrigin>& origins) {
    const auto counts = download(got.num_rows);
    for (std::size_t e = 0; e < want.experts.num_rows.size(); ++e) {
      ASSERT_EQ(reinterpret_cast<const std::int32_t*>(counts.data())[e], want.experts.num_rows[e])
          << c_.name << " expert " << e;
    }
    if (is_expert_major(config_.layout)) {
      const auto first = download(got.first_row);
      for (std::size_t e = 0; e < want.experts.first_row.size(); ++e) {
        ASSERT_EQ(reinterpret_cast<const std::int64_t*>(first.data())[e],
                  want.experts.first_row[e]);
      }
    }
    const auto total = download(got.total_rows);
    EXPECT_EQ(*reinterpret_cast<const std::int32_t*>(total.data()), want.num_rows) << c_.name;
    const TensorView& rows = want.experts.rows;
    expect_rows_equal(c_, origins,
                      static_cast<std::size_t>(rows.stride(0) * bits_of(rows.dtype()) / 8),
                      rows.data(), download(got.rows), "elements");
    compare_scales(want, got, origins);
    if (config_.sends_weights) {
      expect_rows_equal(
          c_, origins,
          want.topk_weights.num_dims() == 1 ? 4 : 4 * static_cast<std::size_t>(config_.num_topk),
          want.topk_weights.data(), download(got.topk_weights), "weights");
    }
    if (got.topk_ids.has_value()) {
      expect_rows_equal(c_, origins, 4 * static_cast<std::size_t>(config_.num_topk),
                        want.topk_ids.data(), download(got.topk_ids), "ids");
    }
  }

  void compare_scales(const Dispatched& want, const DeviceDispatched& got,
                      const std::vector<RowOrigin>& origins) {
    const TensorView& scales = want.experts.scales;
    if (!scales.has_value() || config_.scheme.group == ScaleGroup::kTensor) return;
    const auto device = download(got.scales);
    ASSERT_EQ(scales.num_dims(), got.scales.num_dims());
    if (scales.num_dims() != 2) {
      // Tiles or blocks: compare all that the CPU wrote; gaps of both are zero.
      EXPECT_EQ(std::memcmp(scales.data(), device.data(), scales.num_bytes()), 0) << c_.name;
      return;
    }
    const std::int64_t bytes = bits_of(scales.dtype()) / 8;
    for (const RowOrigin& origin : origins) {
      for (std::int64_t s = 0; s < scales.shape(1); ++s) {
        const std::int64_t at = (origin.row * scales.stride(0) + s * scales.stride(1)) * bytes;
        ASSERT_EQ(std::memcmp(scales.as<std::byte>() + at, device.data() + at,
                              static_cast<std::size_t>(bytes)),
                  0)
            << c_.name << " scale " << s << " of row " << origin.row;
      }
    }
  }

  void combine(const Dispatched& want, const DeviceDispatched& got,
               const std::vector<RowOrigin>& origins, std::int64_t num_tokens, int call) {
    const std::int64_t num_rows = want.experts.rows.shape(0);
    Both results(bytes_of(DType::kBF16, num_rows * config_.hidden));
    for (const RowOrigin& origin : origins) {
      fill(results.as<std::uint16_t>() + origin.row * config_.hidden, DType::kBF16, config_.hidden,
           static_cast<std::uint64_t>(7 * call + 31 * origin.row + 17), c_.all_ones);
    }
    const DType out_dtype = call % 2 == 0 ? DType::kBF16 : DType::kF32;
    Both output(bytes_of(out_dtype, num_tokens * config_.hidden));
    Both bias(bytes_of(DType::kBF16, num_tokens * config_.hidden));
    fill(bias.as<void>(), DType::kBF16, num_tokens * config_.hidden, 99, false);
    CombineOptions cpu_options;
    DeviceCombineOptions gpu_options;
    if (call == 1) {
      cpu_options.bias = {bias.host(DType::kBF16, {num_tokens, config_.hidden})};
      gpu_options.bias = {bias.device(arena_, DType::kBF16, {num_tokens, config_.hidden})};
    }
    const TensorView on_gpu = output.device(arena_, out_dtype, {num_tokens, config_.hidden});
    check_cuda(cudaMemset(on_gpu.data(), 0x5A, output.size()), "poison");
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "poison");
    const TensorView rows = results.device(arena_, DType::kBF16, {num_rows, config_.hidden});
    if (c_.splits_phases) {
      gpu_.combine_send(got.handle, rows, stream_.get(), gpu_options);
      gpu_.combine_receive(got.handle, on_gpu, stream_.get(), gpu_options);
    } else {
      gpu_.combine(got.handle, rows, on_gpu, stream_.get(), gpu_options);
    }
    cpu_.combine(want.handle, results.host(DType::kBF16, {num_rows, config_.hidden}),
                 output.host(out_dtype, {num_tokens, config_.hidden}), cpu_options);
    check_cuda(cudaStreamSynchronize(stream_.get()), "combine");
    gpu_.check();
    const auto sums = download(on_gpu);
    ASSERT_EQ(sums.size(), output.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      ASSERT_EQ(sums[i], output.as<std::byte>()[i])
          << c_.name << " call " << call << ": output byte " << i << " of token "
          << i / (bytes_of(out_dtype, config_.hidden));
    }
  }

  const Case& c_;
  ExchangeConfig config_;
  Group group_;
  Exchange cpu_;
  OwnedStream stream_;
  Arena arena_;
  DeviceExchange gpu_;  // ends first: its end waits for all ranks, and then no kernel runs
};

ExchangeConfig config_of(Layout layout, const QuantScheme& scheme, Reduce reduce,
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

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](Case c) {
    c.name += "_" + std::to_string(all.size());
    all.push_back(std::move(c));
  };
  constexpr auto kBatched = Layout::kBatched;
  constexpr auto kExpanded = Layout::kExpanded;
  constexpr auto kCompact = Layout::kCompact;
  const std::vector<std::int64_t> tokens{37, 5, 0, 1, 20};
  for (const Layout layout : {kBatched, kExpanded, kCompact}) {
    add({"plain", 2, config_of(layout, schemes::kNone, Reduce::kPerRank), tokens});
    add({"fp8", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 0.2});
    add({"odd_hidden", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank, 1027), tokens});
    add({"one_rank", 1, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens});
    add({"all_ones", 2, config_of(layout, schemes::kNone, Reduce::kPerRank), tokens, 0.1, -1,
         true});
    add({"hot", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 0.0, 3});
    add({"nobody", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 1.0});
    add({"split", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 0.1, -1,
         false, DType::kBF16, true});
  }
  for (const Layout layout : {kBatched, kExpanded}) {
    add({"per_expert", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerExpert), tokens, 0.2});
    add({"per_expert_ones", 2, config_of(layout, schemes::kNone, Reduce::kPerExpert), tokens, 0.0,
         -1, true});
  }
  for (const char* name : {"fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep", "fp8_token",
                           "fp8_tensor", "int8_token", "int8_tensor", "int8_block", "nvfp4",
                           "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"}) {
    for (const std::int64_t hidden : {1024, 612}) {
      add({name, 2, config_of(kExpanded, *scheme_from_name(name), Reduce::kPerRank, hidden),
           tokens});
    }
  }
  for (const ScaleLayout scales : {ScaleLayout::kColumnMajor, ScaleLayout::kColumnMajorAligned}) {
    Case c{"columns", 2, config_of(kBatched, schemes::kFp8Block, Reduce::kPerRank), tokens};
    c.config.scale_layout = scales;
    add(c);
  }
  for (const Layout layout : {kBatched, kExpanded}) {
    Case c{"swizzled", 2, config_of(layout, schemes::kNvfp4, Reduce::kPerRank), tokens};
    c.config.scale_layout = ScaleLayout::kSwizzled;
    c.num_calls = 1;
    add(c);
  }
  Case aligned{"aligned", 2, config_of(kExpanded, schemes::kFp8Block, Reduce::kPerRank), tokens};
  aligned.config.expert_alignment = 16;
  add(aligned);
  Case f32{"f32_tokens", 2, config_of(kExpanded, schemes::kFp8Block, Reduce::kPerRank), tokens};
  f32.token_dtype = DType::kF32;
  add(f32);
  for (const Layout layout : {kBatched, kExpanded, kCompact}) {
    Case few{"fewer_experts_than_ranks", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerRank),
             tokens};
    few.config.num_experts = 2;
    few.config.num_topk = 2;
    add(few);
    Case widest{"widest_topk", 2, config_of(layout, schemes::kNvfp4, Reduce::kPerRank, 512), tokens,
                0.3};
    widest.config.num_experts = 64;
    widest.config.num_topk = layout == kCompact ? 31 : 32;
    add(widest);
    Case one{"top_1", 2, config_of(layout, schemes::kNone, Reduce::kPerRank, 16), tokens};
    one.config.num_topk = 1;
    add(one);
    Case longer{"many_tokens",
                3,
                config_of(layout, schemes::kFp8Block, Reduce::kPerRank, 136),
                {1500, 3, 700}};
    longer.config.max_tokens_per_rank = 1500;
    add(longer);
    Case none{"no_tokens_at_all", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), {0}};
    none.config.max_tokens_per_rank = 0;
    add(none);
  }
  Case many{"many_ranks", 7, config_of(kBatched, schemes::kFp8Block, Reduce::kPerRank), tokens};
  many.config.num_experts = 61;
  many.config.num_topk = 9;
  add(many);
  Case real{"real_shape",
            4,
            config_of(kBatched, schemes::kFp8Block, Reduce::kPerRank, 7168),
            {128, 100, 1}};
  real.config.num_experts = 256;
  real.config.num_topk = 8;
  real.config.max_tokens_per_rank = 128;
  add(real);
  return all;
}

class DeviceExchangeTest : public testing::TestWithParam<Case> {};

TEST_P(DeviceExchangeTest, EqualsTheCpuExchange) {
  const int num_gpus = test::num_gpus();
  SWITCHYARD_REQUIRE_GPU(num_gpus);
  run_ranks(GetParam().num_ranks, [&](const Group& group) {
    const DeviceGuard guard(group.rank() % num_gpus);
    RankRun(group, GetParam()).run();
  });
}

INSTANTIATE_TEST_SUITE_P(All, DeviceExchangeTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace switchyard
