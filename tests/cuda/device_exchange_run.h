// SPDX-License-Identifier: Apache-2.0
//
// device_exchange_run.h: makes the same calls on the GPU exchange and the CPU exchange and compares
// all results bit for bit. Ranks are threads; with fewer GPUs than ranks some share a GPU.
#pragma once

#include <utility>

#include "switchyard/exchange.h"

#include "cpu/weigh_reduce.h"
#include "device_exchange_case.h"
#include "gpu.h"
#include "support/ranks.h"

namespace switchyard::test {

class RankRun {
 public:
  RankRun(const Group& group, const Case& c)
      : c_(c),
        config_(with_worst_case(c.config)),
        group_(group),
        cpu_(group, config_),
        gpu_(group, config_, {.timeout_ms = 30'000, .keeps_routing = c.goes_again}) {}

  void run() {
    for (int call = 0; call < c_.num_calls; ++call) run_call(call);
    gpu_.check();
  }

 private:
  /// The inputs of one dispatch on both sides.
  struct Call {
    Input in;
    std::vector<Both> payloads;
    Both scale;
    TensorView tokens, ids, weights;
    TensorView gpu_tokens, gpu_ids, gpu_weights;
    DispatchOptions options;
    DispatchOptions gpu_options;
  };

  /// Row weights with arbitrary bits, and the buffer that receives the returned ones.
  class Weights {
   public:
    Weights(const Case& c, const ExchangeConfig& config, std::int64_t num_rows,
            std::int64_t num_tokens, int seed)
        : num_rows_(num_rows),
          columns_(is_expert_major(config.layout) ? 1 : config.num_topk),
          num_tokens_(num_tokens),
          topk_(config.num_topk),
          sent_(bytes_of(DType::kF32, num_rows * columns_)),
          home_(bytes_of(DType::kF32, num_tokens * topk_)) {
      fill(sent_.as<void>(), DType::kF32, num_rows * columns_, static_cast<std::uint64_t>(seed),
           c.all_ones);
      std::memset(home_.as<void>(), 0x5A, home_.size());
    }
    void add_to(CombineOptions& gpu, CombineOptions& cpu, Arena& arena) {
      gpu.row_weights = sent_.device(arena, DType::kF32, {num_rows_, columns_});
      gpu.returned_weights = home_.device(arena, DType::kF32, {num_tokens_, topk_});
      cpu.returned_weights = home_.host(DType::kF32, {num_tokens_, topk_});
    }
    TensorView of_rows() const { return sent_.host(DType::kF32, {num_rows_, columns_}); }
    void compare(const CombineOptions& gpu) {
      const auto got = download(gpu.returned_weights);
      ASSERT_EQ(got.size(), home_.size());
      for (std::size_t i = 0; i < got.size() / 4; ++i) {
        const auto* bits = reinterpret_cast<const std::uint32_t*>(got.data());
        ASSERT_EQ(bits[i], home_.as<std::uint32_t>()[i]) << "returned weight " << i;
      }
    }

   private:
    std::int64_t num_rows_;
    std::int64_t columns_;
    std::int64_t num_tokens_;
    std::int64_t topk_;
    Both sent_;
    Both home_;
  };

  static ExchangeConfig with_worst_case(ExchangeConfig config) {
    config.worst_case_rows = true;
    return config;
  }

  void run_call(int call) {
    arena_.clear();
    Call first = make_call(call, false);
    const auto [want, got] = dispatch(first);
    if (HasFatalFailure()) return;
    combine(want.handle, got.handle, want.experts.rows.shape(0), first.in.num_tokens, call);
    if (c_.goes_again) go_again(want.handle, got.handle, call);
  }

  // Everything that uses the routing of an earlier handle, which has ended.
  void go_again(const DispatchHandle& cpu, const DispatchHandle& gpu, int call) {
    arena_.clear();
    Call again = make_call(call, false, 50);
    const auto [want, got] = dispatch(again, &cpu, &gpu);
    if (HasFatalFailure()) return;
    const std::int64_t num_rows = want.experts.rows.shape(0);
    if (config_.max_in_flight > 1) {
      Call beside = make_call(call, false, 60);
      const auto [want_beside, got_beside] = dispatch(beside, &want.handle, &got.handle);
      combine(want_beside.handle, got_beside.handle, num_rows, beside.in.num_tokens, call);
    }
    combine(want.handle, got.handle, num_rows, again.in.num_tokens, call);
    arena_.clear();
    const DispatchHandle cpu_open = cpu_.reopen(want.handle);
    const DispatchHandle gpu_open = gpu_.reopen(got.handle, stream_.get());
    check_cuda(cudaStreamSynchronize(stream_.get()), "reopen");  // of ranks that share a GPU
    combine(cpu_open, gpu_open, num_rows, again.in.num_tokens, call + 1);
    arena_.clear();
    Call only = make_call(call, true, 90);
    const auto [want_only, got_only] = dispatch(only);
    if (HasFatalFailure()) return;
    combine(want_only.handle, got_only.handle, num_rows, only.in.num_tokens, call);
    arena_.clear();
    Call last = make_call(call, false, 70);
    const auto [want_last, got_last] = dispatch(last, &want_only.handle, &got_only.handle);
    gpu_.release(got_last.handle);
    cpu_.release(want_last.handle);
  }

  static Both narrow(Both& ids) {
    Both narrow_ids(ids.size() / 2);
    for (std::size_t i = 0; i < ids.size() / 8; ++i) {
      narrow_ids.as<std::int32_t>()[i] = static_cast<std::int32_t>(ids.as<std::int64_t>()[i]);
    }
    return narrow_ids;
  }

  // `salt` selects other tokens and weights; the number of tokens depends on the call alone.
  Call make_call(int call, bool routing_only, int salt = 0) {
    Call c;
    const std::int64_t topk = config_.num_topk;
    c.in = make_input(c_, group_.rank(), call, salt);
    const std::int64_t num_tokens = c.in.num_tokens;
    c.tokens = c.in.tokens.host(c_.token_dtype, {num_tokens, config_.hidden});
    c.gpu_tokens = c.in.tokens.device(arena_, c_.token_dtype, {num_tokens, config_.hidden});
    if (topk > 0) {
      c.ids = c.in.ids.host(DType::kI64, {num_tokens, topk});
      c.gpu_ids = c_.ids_are_i32 ? narrow(c.in.ids).device(arena_, DType::kI32, {num_tokens, topk})
                                 : c.in.ids.device(arena_, DType::kI64, {num_tokens, topk});
    }
    if (topk > 0 && (config_.sends_weights || config_.reduce == Reduce::kPerExpert)) {
      c.weights = c.in.weights.host(DType::kF32, {num_tokens, topk});
      c.gpu_weights = c.in.weights.device(arena_, DType::kF32, {num_tokens, topk});
    }
    c.scale = Both(4);
    *c.scale.as<float>() = 300.0f;
    if (config_.scheme.group == ScaleGroup::kTensor || config_.scheme.needs_tensor_scale()) {
      c.options.tensor_scale = c.scale.host(DType::kF32, {1});
      c.gpu_options.tensor_scale = c.scale.device(arena_, DType::kF32, {1});
    }
    c.options.max_tokens = c.gpu_options.max_tokens = c_.max_tokens;
    c.options.routing_only = c.gpu_options.routing_only = routing_only;
    for (const std::int64_t bytes : config_.payload_bytes) {
      if (routing_only) break;
      Both& payload = c.payloads.emplace_back(static_cast<std::size_t>(num_tokens * bytes));
      fill(payload.as<void>(), DType::kBF16, num_tokens * bytes / 2,
           static_cast<std::uint64_t>(bytes + group_.rank() + 10 * call + salt), c_.all_ones);
      c.options.payloads.push_back(payload.host(DType::kU8, {num_tokens, bytes}));
      c.gpu_options.payloads.push_back(payload.device(arena_, DType::kU8, {num_tokens, bytes}));
    }
    return c;
  }

  std::pair<Dispatched, Dispatched> dispatch(const Call& c, const DispatchHandle* cpu = nullptr,
                                             const DispatchHandle* gpu = nullptr) {
    const Dispatched want = cpu == nullptr
                                ? cpu_.dispatch(c.tokens, c.ids, c.weights, c.options)
                                : cpu_.dispatch_again(*cpu, c.tokens, c.weights, c.options);
    const Stream stream = stream_.get();
    Dispatched got;
    if (c_.splits_phases) {
      const DispatchHandle handle =
          gpu == nullptr
              ? gpu_.dispatch_send(c.gpu_tokens, c.gpu_ids, c.gpu_weights, stream, c.gpu_options)
              : gpu_.dispatch_again_send(*gpu, c.gpu_tokens, c.gpu_weights, stream, c.gpu_options);
      got = gpu_.dispatch_receive(handle, stream);
    } else if (gpu == nullptr) {
      got = gpu_.dispatch(c.gpu_tokens, c.gpu_ids, c.gpu_weights, stream, c.gpu_options);
    } else {
      got = gpu_.dispatch_again(*gpu, c.gpu_tokens, c.gpu_weights, stream, c.gpu_options);
    }
    check_cuda(cudaStreamSynchronize(stream_.get()), "dispatch");
    gpu_.check();
    compare(want, got, c.options.routing_only);
    return {want, got};
  }

  static bool HasFatalFailure() { return testing::Test::HasFatalFailure(); }

  void compare(const Dispatched& want, const Dispatched& got, bool routing_only) {
    compare_counts(want, got);
    compare_routing(want, got);
    if (!routing_only) compare_rows(want, got);
  }

  void compare_counts(const Dispatched& want, const Dispatched& got) {
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
    if (config_.overflow == Overflow::kDrop) {
      const auto dropped = download(got.num_dropped);
      EXPECT_EQ(*reinterpret_cast<const std::int32_t*>(dropped.data()), want.num_dropped)
          << c_.name;
    }
  }

  // Where rows without a token have a meaning, all of them.
  void compare_routing(const Dispatched& want, const Dispatched& got) {
    const bool is_whole = config_.layout == Layout::kByRank ||
                          config_.layout == Layout::kAllGather || config_.zero_padding;
    const auto expect = [&](const TensorView& on_cpu, const TensorView& on_gpu, const char* what) {
      ASSERT_EQ(on_cpu.has_value(), on_gpu.has_value()) << c_.name << " " << what;
      if (!on_cpu.has_value()) return;
      ASSERT_EQ(on_cpu.num_bytes(), on_gpu.num_bytes()) << c_.name << " " << what;
      const auto bytes = download(on_gpu);
      if (is_whole) {
        EXPECT_EQ(std::memcmp(on_cpu.data(), bytes.data(), bytes.size()), 0)
            << c_.name << ": " << what;
      }
      const std::int64_t columns = on_cpu.num_dims() == 1 ? 1 : on_cpu.shape(1);
      expect_rows_equal(c_, cpu_.row_origins(want.handle), 4 * static_cast<std::size_t>(columns),
                        on_cpu.data(), bytes, what);
    };
    expect(want.topk_weights, got.topk_weights, "weights");
    expect(want.topk_ids, got.topk_ids, "ids");
  }

  void compare_rows(const Dispatched& want, const Dispatched& got) {
    const std::vector<RowOrigin> origins = cpu_.row_origins(want.handle);
    const TensorView& rows = want.experts.rows;
    ASSERT_EQ(rows.num_bytes(), got.rows.num_bytes()) << c_.name;
    const auto bytes = download(got.rows);
    expect_rows_equal(c_, origins,
                      static_cast<std::size_t>(rows.stride(0) * bits_of(rows.dtype()) / 8),
                      rows.data(), bytes, "elements");
    if (config_.zero_padding) {
      EXPECT_EQ(std::memcmp(rows.data(), bytes.data(), bytes.size()), 0) << c_.name << ": gaps";
    }
    compare_scales(want, got, origins);
    ASSERT_EQ(want.payloads.size(), got.payloads.size());
    for (std::size_t i = 0; i < want.payloads.size(); ++i) {
      const auto payload = download(got.payloads[i]);
      expect_rows_equal(c_, origins, static_cast<std::size_t>(config_.payload_bytes[i]),
                        want.payloads[i].data(), payload, "payload");
    }
  }

  void compare_scales(const Dispatched& want, const Dispatched& got,
                      const std::vector<RowOrigin>& origins) {
    const TensorView& scales = want.experts.scales;
    if (!scales.has_value() || config_.scheme.group == ScaleGroup::kTensor) return;
    const auto device = download(got.scales);
    ASSERT_EQ(scales.num_dims(), got.scales.num_dims());
    if (scales.num_dims() != 2) {
      // Tiles or blocks: compare all that the CPU wrote; both sides zero the gaps.
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

  static constexpr int kPoison = 0x5A;

  void combine(const DispatchHandle& cpu, const DispatchHandle& gpu, std::int64_t num_rows,
               std::int64_t num_tokens, int call) {
    Both results(bytes_of(c_.result_dtype, num_rows * config_.hidden));
    for (const RowOrigin& origin : cpu_.row_origins(cpu)) {
      fill(results.as<std::byte>() + bytes_of(c_.result_dtype, origin.row * config_.hidden),
           c_.result_dtype, config_.hidden,
           static_cast<std::uint64_t>(7 * call + 31 * origin.row + 17), c_.all_ones, c_.has_tiny);
    }
    const DType out_dtype = call % 2 == 0 ? c_.result_dtype : DType::kF32;
    Both output(bytes_of(out_dtype, num_tokens * config_.hidden));
    Both bias(bytes_of(DType::kBF16, num_tokens * config_.hidden));
    fill(bias.as<void>(), DType::kBF16, num_tokens * config_.hidden, 99, false);
    CombineOptions cpu_options;
    CombineOptions gpu_options;
    if (call == 1) {
      cpu_options.bias = {bias.host(DType::kBF16, {num_tokens, config_.hidden})};
      gpu_options.bias = {bias.device(arena_, DType::kBF16, {num_tokens, config_.hidden})};
    }
    Both shared(bytes_of(DType::kBF16, num_tokens * config_.hidden));
    fill(shared.as<void>(), DType::kBF16, num_tokens * config_.hidden, 77, false);
    const bool adds_shared = c_.adds_shared && out_dtype == DType::kBF16;
    if (adds_shared) {
      gpu_options.shared = shared.device(arena_, DType::kBF16, {num_tokens, config_.hidden});
    }
    Weights weights(c_, config_, num_rows, num_tokens, 10 * call + group_.rank());
    if (c_.returns_weights) weights.add_to(gpu_options, cpu_options, arena_);
    // The stride keeps rows 16-byte aligned in call 0 and leaves most of them unaligned later.
    const std::int64_t stride = config_.hidden + (!c_.pads_output ? 0 : call == 0 ? 8 : 3);
    const std::size_t padded_bytes = bytes_of(out_dtype, num_tokens * stride);
    const TensorView on_gpu(arena_.allocate(padded_bytes), out_dtype, {num_tokens, config_.hidden},
                            {stride, 1});
    check_cuda(cudaMemset(on_gpu.data(), kPoison, padded_bytes), "poison");
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "poison");
    const TensorView rows = results.device(arena_, c_.result_dtype, {num_rows, config_.hidden});
    if (c_.splits_phases) {
      gpu_.combine_send(gpu, rows, stream_.get(), gpu_options);
      gpu_.combine_receive(gpu, on_gpu, stream_.get(), gpu_options);
    } else {
      gpu_.combine(gpu, rows, on_gpu, stream_.get(), gpu_options);
    }
    cpu_.combine(cpu, results.host(c_.result_dtype, {num_rows, config_.hidden}),
                 output.host(out_dtype, {num_tokens, config_.hidden}), cpu_options,
                 c_.returns_weights ? weights.of_rows() : TensorView());
    for (std::int64_t t = 0; adds_shared && t < num_tokens; ++t) {
      std::uint16_t* to = output.as<std::uint16_t>() + t * config_.hidden;
      const void* const partials[] = {to, shared.as<std::uint16_t>() + t * config_.hidden};
      weigh_reduce_row(partials, DType::kBF16, nullptr, 2, config_.hidden, to, DType::kBF16);
    }
    check_cuda(cudaStreamSynchronize(stream_.get()), "combine");
    gpu_.check();
    const std::vector<std::byte> sums =
        download(TensorView(on_gpu.data(), out_dtype, {num_tokens * stride}));
    const std::size_t row_bytes = bytes_of(out_dtype, config_.hidden);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t token = i / bytes_of(out_dtype, stride);
      const std::size_t byte = i % bytes_of(out_dtype, stride);
      const std::byte want =
          byte < row_bytes ? output.as<std::byte>()[token * row_bytes + byte] : std::byte{kPoison};
      ASSERT_EQ(sums[i], want) << c_.name << " call " << call << ": byte " << byte << " of token "
                               << token;
    }
    if (c_.returns_weights) weights.compare(gpu_options);
  }

  const Case& c_;
  ExchangeConfig config_;
  Group group_;
  Exchange cpu_;
  OwnedStream stream_;
  Arena arena_;
  Exchange gpu_;  // ends first: its end waits for all ranks, and then no kernel runs
};

}  // namespace switchyard::test
