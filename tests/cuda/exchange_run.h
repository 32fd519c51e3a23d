// SPDX-License-Identifier: Apache-2.0
//
// exchange_run.h: makes the same calls on an exchange between GPUs and on one between CPUs, and
// compares all results bit for bit. Ranks are threads, or processes with a group for each device;
// with fewer GPUs than ranks some share a GPU.
#pragma once

#include "switchyard/exchange.h"

#include "exchange_case.h"
#include "gpu_arena.h"
#include "support/ranks.h"

namespace switchyard::test {

class ExchangeRun {
 public:
  /// Collective.
  ExchangeRun(const Group& group, const Case& c) : ExchangeRun(group, group, c) {}
  /// With a group of the same ranks for the GPUs.
  ExchangeRun(const Group& group, const Group& gpu_group, const Case& c)
      : c_(c),
        config_(with_worst_case(c.config)),
        group_(group),
        arena_(gpu_of(group.rank()), kArenaBytes),
        cpu_(group, config_),
        gpu_(gpu_group, config_,
             {.device = arena_.device(),
              .timeout_ms = 30'000,
              .num_ctas = c.num_ctas,
              .keeps_routing = c.goes_again,
              .host_capacity = c.host_capacity,
              .exact_messages = c.exact_messages}) {}

  void run() {
    for (int call = 0; call < c_.num_calls; ++call) run_call(call);
    gpu_.check();
  }

 private:
  static constexpr std::size_t kArenaBytes = std::size_t{640} << 20;
  static constexpr int kPoison = 0x5A;

  /// What a dispatch is given on one device.
  struct Call {
    TensorView tokens, ids, weights;
    DispatchOptions options;
  };
  /// Memory of a call on the host.
  struct Given {
    Input in;
    std::vector<Tensor> payloads;
    Tensor scale;
    Tensor codes;
    Tensor scales;
    Call call;
  };
  /// The same on both devices.
  struct Received {
    Dispatched want;
    Dispatched got;
  };
  struct Handles {
    const DispatchHandle& cpu;
    const DispatchHandle& gpu;
  };

  static ExchangeConfig with_worst_case(ExchangeConfig config) {
    config.worst_case_rows = true;
    return config;
  }
  static bool HasFatalFailure() { return testing::Test::HasFatalFailure(); }
  static std::int64_t num_rows_of(const Dispatched& received) {
    const TensorView& rows = received.experts.rows;
    return rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1) : rows.shape(0);
  }

  void run_call(int call) {
    arena_.clear();
    const Given first = give(call, false);
    const Received received = dispatch(first);
    if (HasFatalFailure()) return;
    combine({received.want.handle, received.got.handle}, num_rows_of(received.want),
            first.in.num_tokens, call);
    if (c_.goes_again) go_again({received.want.handle, received.got.handle}, call);
  }

  // Uses the routing of an earlier handle, which has ended, in all ways.
  void go_again(const Handles& earlier, int call) {
    arena_.clear();
    const Given again = give(call, false, 50);
    const Received received = dispatch(again, &earlier);
    if (HasFatalFailure()) return;
    const Handles handles{received.want.handle, received.got.handle};
    const std::int64_t num_rows = num_rows_of(received.want);
    const std::int64_t num_tokens = again.in.num_tokens;
    if (config_.max_in_flight > 1) {
      const Given other = give(call, false, 60);
      const Received beside = dispatch(other, &handles);
      combine({beside.want.handle, beside.got.handle}, num_rows, other.in.num_tokens, call);
    }
    combine(handles, num_rows, num_tokens, call);
    arena_.clear();
    const DispatchHandle cpu_open = cpu_.reopen(handles.cpu);
    const DispatchHandle gpu_open = gpu_.reopen(handles.gpu, arena_.stream());
    arena_.wait();  // for ranks that share a GPU
    combine({cpu_open, gpu_open}, num_rows, num_tokens, call + 1);
    arena_.clear();
    const Given only = give(call, true, 90);
    const Received routed = dispatch(only);
    if (HasFatalFailure()) return;
    const Handles routes{routed.want.handle, routed.got.handle};
    combine(routes, num_rows_of(routed.want), only.in.num_tokens, call);
    arena_.clear();
    const Given last = give(call, false, 70);
    const Received late = dispatch(last, &routes);
    gpu_.release(late.got.handle);
    cpu_.release(late.want.handle);
  }

  Given give(int call, bool routing_only, int salt = 0) {
    Given given;
    given.in = make_input(c_, group_.rank(), call, salt);
    Call& c = given.call;
    c.tokens = given.in.tokens;
    const bool has_routing = config_.num_topk > 0;
    if (has_routing) c.ids = given.in.ids;
    if (has_routing && (config_.sends_weights || config_.reduce == Reduce::kPerExpert)) {
      c.weights = given.in.weights;
    }
    given.scale = Tensor(DType::kF32, {1});
    const bool is_tensor = config_.scheme.group == ScaleGroup::kTensor;
    *given.scale.as<float>() = is_tensor && call % 2 == 1 ? 0.5f : 300.0f;
    if (is_tensor || config_.scheme.needs_tensor_scale()) {
      c.options.tensor_scale = given.scale;
    }
    c.options.routing_only = routing_only;
    if (c_.gives_codes && !routing_only) quantize_tokens(given);
    for (const std::int64_t bytes : config_.payload_bytes) {
      if (routing_only) break;
      const std::int64_t num_tokens = given.in.num_tokens;
      const Tensor& payload =
          given.payloads.emplace_back(DType::kU8, std::initializer_list{num_tokens, bytes});
      fill(payload.data(), DType::kBF16, num_tokens * bytes / 2,
           static_cast<std::uint64_t>(bytes + group_.rank() + 10 * call + salt), c_.all_ones);
      c.options.payloads.push_back(payload);
    }
    return given;
  }

  // Scales of one block after another, because a caller may have any strides.
  void quantize_tokens(Given& given) const {
    const QuantScheme& scheme = config_.scheme;
    const std::int64_t num_tokens = given.in.num_tokens;
    const bool has_scales = scheme.group != ScaleGroup::kTensor;
    const std::int64_t num_scales = has_scales ? switchyard::num_scales(scheme, config_.hidden) : 1;
    Call& c = given.call;
    given.codes = Tensor(scheme.dtype, {num_tokens, config_.hidden});
    given.scales = Tensor(scale_dtype(scheme), {num_scales, has_scales ? num_tokens : 1});
    const TensorView scales = has_scales
                                  ? TensorView(given.scales.data(), given.scales.view().dtype(),
                                               {num_tokens, num_scales}, {1, num_tokens})
                                  : TensorView(given.scales.data(), DType::kF32, {1});
    quantize(c.tokens, scheme, given.codes, scales, Stream::host(), c.options.tensor_scale);
    c.tokens = given.codes;
    if (has_scales) c.options.scales = scales;
  }

  Call on_gpu(const Call& host) {
    Call c;
    c.tokens = arena_.upload(host.tokens);
    const Tensor narrow_ids = c_.ids_are_i32 ? narrow(host.ids) : Tensor();
    c.ids = arena_.upload(c_.ids_are_i32 ? narrow_ids.view() : host.ids);
    c.weights = arena_.upload(host.weights);
    c.options.tensor_scale = arena_.upload(host.options.tensor_scale);
    c.options.scales = arena_.upload(host.options.scales);
    c.options.routing_only = host.options.routing_only;
    for (const TensorView& payload : host.options.payloads) {
      c.options.payloads.push_back(arena_.upload(payload));
    }
    return c;
  }
  static Tensor narrow(const TensorView& ids) {
    Tensor result(DType::kI32, {ids.shape(0), ids.shape(1)});
    for (std::int64_t i = 0; i < ids.num_elements(); ++i) {
      result.as<std::int32_t>()[i] = static_cast<std::int32_t>(ids.as<std::int64_t>()[i]);
    }
    return result;
  }
  CombineOptions on_gpu(const CombineOptions& host) {
    CombineOptions options;
    for (const TensorView& bias : host.bias) options.bias.push_back(arena_.upload(bias));
    options.shared = arena_.upload(host.shared);
    options.row_weights = arena_.upload(host.row_weights);
    options.returned_weights = arena_.upload(host.returned_weights);
    return options;
  }

  Dispatched dispatch(Exchange& exchange, const Call& c, const DispatchHandle* earlier,
                      Stream stream) const {
    if (c_.splits_phases) {
      const DispatchHandle handle =
          earlier == nullptr
              ? exchange.dispatch_send(c.tokens, c.ids, c.weights, stream, c.options)
              : exchange.dispatch_again_send(*earlier, c.tokens, c.weights, stream, c.options);
      return exchange.dispatch_receive(handle, stream);
    }
    if (earlier == nullptr) return exchange.dispatch(c.tokens, c.ids, c.weights, stream, c.options);
    return exchange.dispatch_again(*earlier, c.tokens, c.weights, stream, c.options);
  }
  void combine(Exchange& exchange, const DispatchHandle& handle, const TensorView& rows,
               const TensorView& output, Stream stream, const CombineOptions& options) const {
    if (!c_.splits_phases) return exchange.combine(handle, rows, output, stream, options);
    exchange.combine_send(handle, rows, stream, options);
    exchange.combine_receive(handle, output, stream, options);
  }

  Received dispatch(const Given& given, const Handles* earlier = nullptr) {
    const Call call = on_gpu(given.call);
    Received received;
    received.want =
        dispatch(cpu_, given.call, earlier == nullptr ? nullptr : &earlier->cpu, Stream::host());
    received.got =
        dispatch(gpu_, call, earlier == nullptr ? nullptr : &earlier->gpu, arena_.stream());
    arena_.wait();
    gpu_.check();
    compare_counts(received);
    compare_routing(received);
    if (!given.call.options.routing_only) compare_rows(received);
    return received;
  }

  Downloaded download(const TensorView& gpu) const { return Downloaded(gpu, arena_.stream()); }

  void expect_same_bytes(const TensorView& want, const TensorView& got, const char* what) const {
    ASSERT_EQ(want.has_value(), got.has_value()) << c_.name << " " << what;
    if (!want.has_value()) return;
    ASSERT_EQ(want.num_bytes(), got.num_bytes()) << c_.name << " " << what;
    const Downloaded bytes = download(got);
    EXPECT_EQ(std::memcmp(want.data(), bytes.bytes().data(), want.num_bytes()), 0)
        << c_.name << ": " << what;
  }

  void compare_counts(const Received& r) const {
    expect_same_bytes(r.want.experts.num_rows, r.got.experts.num_rows, "rows of experts");
    expect_same_bytes(r.want.experts.first_row, r.got.experts.first_row, "first rows of experts");
    expect_same_bytes(r.want.total_rows, r.got.total_rows, "total_rows");
    expect_same_bytes(r.want.num_dropped, r.got.num_dropped, "num_dropped");
  }

  // Where rows without a token have a meaning, compares all of them.
  void compare_routing(const Received& r) const {
    const bool is_whole = config_.layout == Layout::kByRank ||
                          config_.layout == Layout::kAllGather || config_.zero_padding;
    const auto expect = [&](const TensorView& want, const TensorView& got, const char* what) {
      if (is_whole) return expect_same_bytes(want, got, what);
      ASSERT_EQ(want.has_value(), got.has_value()) << c_.name << " " << what;
      if (!want.has_value()) return;
      ASSERT_EQ(want.num_bytes(), got.num_bytes()) << c_.name << " " << what;
      const std::int64_t columns = want.num_dims() == 1 ? 1 : want.shape(1);
      const Downloaded bytes = download(got);
      expect_rows_equal(c_, cpu_.row_origins(r.want.handle), 4 * static_cast<std::size_t>(columns),
                        want.data(), bytes.bytes(), what);
    };
    expect(r.want.topk_weights, r.got.topk_weights, "weights");
    expect(r.want.topk_ids, r.got.topk_ids, "ids");
  }

  void compare_rows(const Received& r) const {
    const std::vector<RowOrigin> origins = cpu_.row_origins(r.want.handle);
    const TensorView& rows = r.want.experts.rows;
    ASSERT_EQ(rows.describe() + " on " + name_of(arena_.device()), r.got.experts.rows.describe());
    const Downloaded bytes = download(r.got.experts.rows);
    expect_rows_equal(c_, origins,
                      static_cast<std::size_t>(config_.hidden * bits_of(rows.dtype()) / 8),
                      rows.data(), bytes.bytes(), "elements");
    if (config_.zero_padding) expect_same_bytes(rows, r.got.experts.rows, "gaps");
    compare_scales(r, origins);
    ASSERT_EQ(r.want.payloads.size(), r.got.payloads.size());
    for (std::size_t i = 0; i < r.want.payloads.size(); ++i) {
      const Downloaded payload = download(r.got.payloads[i]);
      expect_rows_equal(c_, origins, static_cast<std::size_t>(config_.payload_bytes[i]),
                        r.want.payloads[i].data(), payload.bytes(), "payload");
    }
  }

  void compare_scales(const Received& r, const std::vector<RowOrigin>& origins) const {
    const TensorView& want = r.want.experts.scales;
    const TensorView& got = r.got.experts.scales;
    if (!want.has_value() || config_.scheme.group == ScaleGroup::kTensor) return;
    ASSERT_EQ(want.num_dims(), got.num_dims());
    const Downloaded scales = download(got);
    if (want.num_dims() > 2 && config_.scale_layout != ScaleLayout::kRowMajor) {
      // Tiles or blocks: compare everything the CPU wrote; gaps are zero on both.
      EXPECT_EQ(std::memcmp(want.data(), scales.bytes().data(), want.num_bytes()), 0) << c_.name;
      return;
    }
    const bool is_batch = want.num_dims() == 3;
    const std::int64_t block = is_batch ? want.shape(1) : want.shape(0);
    const int first = is_batch ? 1 : 0;
    const std::int64_t bytes = bits_of(want.dtype()) / 8;
    for (const RowOrigin& origin : origins) {
      for (std::int64_t s = 0; s < want.shape(first + 1); ++s) {
        const std::int64_t index = (is_batch ? origin.row / block * want.stride(0) : 0) +
                                   origin.row % block * want.stride(first) +
                                   s * want.stride(first + 1);
        ASSERT_EQ(
            std::memcmp(want.as<std::byte>() + index * bytes, scales.bytes().data() + index * bytes,
                        static_cast<std::size_t>(bytes)),
            0)
            << c_.name << " scale " << s << " of row " << origin.row;
      }
    }
  }

  void combine(const Handles& handles, std::int64_t num_rows, std::int64_t num_tokens, int call) {
    const std::int64_t hidden = config_.hidden;
    const Tensor results(c_.result_dtype, {num_rows, hidden});
    const std::int64_t result_bytes = hidden * bits_of(c_.result_dtype) / 8;
    for (const RowOrigin& origin : cpu_.row_origins(handles.cpu)) {
      fill(results.as<std::byte>() + origin.row * result_bytes, c_.result_dtype, hidden,
           static_cast<std::uint64_t>(7 * call + 31 * origin.row + 17), c_.all_ones, c_.has_tiny);
    }
    const DType out_dtype = call % 2 == 0 ? c_.result_dtype : DType::kF32;
    CombineOptions options;
    const Tensor bias(DType::kBF16, {num_tokens, hidden});
    fill(bias.data(), DType::kBF16, num_tokens * hidden, 99, false);
    if (call == 1) options.bias = {bias};
    const Tensor shared(DType::kBF16, {num_tokens, hidden});
    fill(shared.data(), DType::kBF16, num_tokens * hidden, 77, false);
    if (c_.adds_shared && out_dtype == DType::kBF16) options.shared = shared;
    const std::int64_t columns = is_expert_major(config_.layout) ? 1 : config_.num_topk;
    const Tensor row_weights(DType::kF32, {num_rows, columns});
    const Tensor returned(DType::kF32, {num_tokens, std::int64_t{config_.num_topk}});
    if (c_.returns_weights) {
      fill(row_weights.data(), DType::kF32, num_rows * columns,
           static_cast<std::uint64_t>(10 * call + group_.rank()), c_.all_ones);
      std::memset(returned.data(), kPoison, returned.view().num_bytes());
      options.row_weights = row_weights;
      options.returned_weights = returned;
    }
    // 16 bytes or more between rows, or so that few rows start at a multiple of 16 bytes.
    const std::int64_t stride = hidden + (!c_.pads_output ? 0 : call == 0 ? 8 : 3);
    const Tensor sums(out_dtype, {num_tokens, stride});
    std::memset(sums.data(), kPoison, sums.view().num_bytes());
    const TensorView gpu_sums = arena_.upload(sums);
    const auto output = [&](const TensorView& padded) {
      return TensorView(padded.data(), out_dtype, {num_tokens, hidden}, {stride, 1},
                        padded.device());
    };
    const CombineOptions gpu_options = on_gpu(options);
    TensorView rows = results;
    TensorView gpu_rows = arena_.upload(results);
    const bool is_in_place = c_.in_place == 1 || (group_.rank() + call) % 2 == 1;
    TensorView there;
    if (c_.in_place != 0) {
      there = gpu_.combine_input(handles.gpu);
      group_.barrier();  // it may take memory, for ranks that share a GPU
    }
    if (c_.in_place != 0 && is_in_place) {
      const std::size_t bytes = rows.num_bytes();
      rows = cpu_.combine_input(handles.cpu);
      std::memcpy(rows.data(), results.data(), bytes);
      cuda::check_cuda(cudaMemcpyAsync(there.data(), gpu_rows.data(), bytes,
                                       cudaMemcpyDeviceToDevice, arena_.stream().get()),
                       "copy");
      gpu_rows = there;
    }
    combine(gpu_, handles.gpu, gpu_rows, output(gpu_sums), arena_.stream(), gpu_options);
    combine(cpu_, handles.cpu, rows, output(sums), Stream::host(), options);
    arena_.wait();
    gpu_.check();
    const std::int64_t row_bytes = stride * bits_of(out_dtype) / 8;
    const Downloaded got = download(gpu_sums);
    for (std::size_t i = 0; i < got.bytes().size(); ++i) {
      ASSERT_EQ(got.bytes()[i], sums.as<std::byte>()[i])
          << c_.name << " call " << call << ": byte " << static_cast<std::int64_t>(i) % row_bytes
          << " of token " << static_cast<std::int64_t>(i) / row_bytes;
    }
    if (c_.returns_weights) {
      expect_same_bytes(returned, gpu_options.returned_weights, "returned weights");
    }
  }

  const Case& c_;
  ExchangeConfig config_;
  Group group_;
  GpuArena arena_;
  Exchange cpu_;
  Exchange gpu_;  // ends first: its end waits for all ranks, and then no kernel runs
};

}  // namespace switchyard::test
