// SPDX-License-Identifier: Apache-2.0
//
// What Exchange refuses on the host: wrong tensors, handles and options. Nothing is launched
// then, and the exchange goes on. One rank on one GPU.

#include <limits>

#include "core/fail.h"
#include "exchange_rank.h"
#include "gpu.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;

constexpr Errc kBad = Errc::kInvalidArgument;

using Shape = std::vector<std::int64_t>;

class ExchangeArgumentsTest : public testing::Test {
 protected:
  void SetUp() override { REQUIRE_GPU(); }

  static void run(const ExchangeConfig& config, const std::function<void(ExchangeRank&)>& body,
                  const ExchangeOptions& options = {}) {
    run_ranks(1, [&](const Group& group) {
      const cuda::DeviceGuard guard(0);
      ExchangeRank rank(group, config, options);
      body(rank);
      rank.finish();
    });
  }
};

TensorView like(const TensorView& view, DType dtype, const Shape& shape) {
  return TensorView(view.data(), dtype, shape, view.device());
}

// The same, `bytes` behind.
TensorView behind(const TensorView& view, std::int64_t bytes, DType dtype, const Shape& shape) {
  return TensorView(view.as<std::byte>() + bytes, dtype, shape, view.device());
}

// Views of the rank's memory, to be made wrong in one respect each.
struct Views {
  explicit Views(const ExchangeRank& rank) : tokens(rank.tokens()), ids(rank.ids()) {}
  TensorView tokens;
  TensorView ids;
  TensorView weights{};
  DispatchOptions options{};
};

struct WrongInput {
  const char* phrase;
  std::function<void(Views&)> spoil;
};

std::function<void(Views&)> tokens_are(DType dtype, const Shape& shape) {
  return [=](Views& v) { v.tokens = like(v.tokens, dtype, shape); };
}
std::function<void(Views&)> ids_are(DType dtype, const Shape& shape) {
  return [=](Views& v) { v.ids = like(v.ids, dtype, shape); };
}
std::function<void(Views&)> weights_are(DType dtype, const Shape& shape) {
  return [=](Views& v) { v.weights = like(v.tokens, dtype, shape); };
}
std::function<void(Views&)> scales_are(DType tokens, const Shape& shape, DType dtype) {
  return [=](Views& v) {
    v.options.scales = like(v.tokens, dtype, shape);
    v.tokens = like(v.tokens, tokens, {16, 1024});
  };
}
std::function<void(Views&)> tensor_scale_is(DType dtype, std::int64_t count) {
  return [=](Views& v) { v.options.tensor_scale = like(v.tokens, dtype, {count}); };
}

void expect_input_refused(ExchangeRank& rank, const std::vector<WrongInput>& inputs) {
  const std::size_t launches = rank.num_launches([&] {
    for (const WrongInput& wrong : inputs) {
      SCOPED_TRACE(wrong.phrase);
      Views v(rank);
      wrong.spoil(v);
      expect_invalid(wrong.phrase, [&] {
        (void)rank.exchange().dispatch(v.tokens, v.ids, v.weights, rank.stream(), v.options);
      });
      expect_invalid(wrong.phrase, [&] {
        (void)rank.exchange().dispatch_send(v.tokens, v.ids, v.weights, rank.stream(), v.options);
      });
    }
  });
  EXPECT_EQ(launches, 0u);
}

TEST_F(ExchangeArgumentsTest, WrongInputsOfDispatch) {
  ExchangeConfig config = fault_config();
  config.sends_weights = false;
  run(config, [](ExchangeRank& rank) {
    expect_input_refused(
        rank,
        {{"tokens is", [](Views& v) { v.tokens = {}; }},
         {"tokens is i32", tokens_are(DType::kI32, {8, 1024})},
         {"tokens is", tokens_are(DType::kBF16, {16, 1023})},
         {"tokens is", tokens_are(DType::kBF16, {16 * 1024})},
         {"tokens has 17 rows, but max_tokens_per_rank is 16",
          tokens_are(DType::kBF16, {17, 1024})},
         {"tokens starts at",
          [](Views& v) {
            v.tokens = behind(v.tokens, 1, DType::kBF16, {15, 1024});
          }},
         {"topk_ids is", [](Views& v) { v.ids = {}; }},
         {"topk_ids is f32", ids_are(DType::kF32, {16, 2})},
         {"topk_ids is", ids_are(DType::kI64, {15, 2})},
         {"topk_ids is", ids_are(DType::kI32, {16, 3})},
         {"topk_weights is given, but sends_weights is false", weights_are(DType::kF32, {16, 2})},
         {"options.scales is", scales_are(DType::kBF16, {16, 2}, DType::kF32)}});
    rank.pair();
  });
  config.sends_weights = true;
  run(config, [](ExchangeRank& rank) {
    expect_input_refused(rank, {{"topk_weights is bf16", weights_are(DType::kBF16, {16, 2})},
                                {"topk_weights is", weights_are(DType::kF32, {16, 1})},
                                {"topk_weights is", weights_are(DType::kF32, {15, 2})}});
    rank.pair();
  });
  config.scheme = schemes::kFp8Block;
  run(config, [](ExchangeRank& rank) {
    expect_input_refused(
        rank, {{"options.scales is", tokens_are(DType::kE4M3, {16, 1024})},
               {"options.scales is bf16", scales_are(DType::kE4M3, {16, 8}, DType::kBF16)},
               {"options.scales is f32", scales_are(DType::kE4M3, {16, 7}, DType::kF32)},
               {"options.scales is f32", scales_are(DType::kE4M3, {15, 8}, DType::kF32)},
               {"must be absent", scales_are(DType::kBF16, {16, 8}, DType::kF32)}});
  });
  config.scheme = schemes::kFp8Tensor;
  run(config, [](ExchangeRank& rank) {
    expect_input_refused(rank, {{"tensor_scale is", [](Views&) {}},
                                {"tensor_scale is bf16", tensor_scale_is(DType::kBF16, 1)},
                                {"tensor_scale is f32", tensor_scale_is(DType::kF32, 2)}});
  });
}

/// What a combine is given.
struct Returns {
  TensorView rows;
  TensorView output;
  CombineOptions options{};
};

struct WrongReturn {
  const char* phrase;
  std::function<void(Returns&)> spoil;
  Errc code = kBad;
};

std::function<void(Returns&)> rows_are(DType dtype, const Shape& shape) {
  return [=](Returns& r) { r.rows = like(r.rows, dtype, shape); };
}
std::function<void(Returns&)> output_is(DType dtype, const Shape& shape) {
  return [=](Returns& r) { r.output = like(r.output, dtype, shape); };
}
std::function<void(Returns&)> option_is(TensorView CombineOptions::*option, DType dtype,
                                        const Shape& shape) {
  return [=](Returns& r) { r.options.*option = like(r.output, dtype, shape); };
}

// Nothing is launched, and the handle is unchanged.
void expect_returns_refused(ExchangeRank& rank, const Dispatched& got,
                            const std::vector<WrongReturn>& wrongs) {
  const std::size_t launches = rank.num_launches([&] {
    for (const WrongReturn& wrong : wrongs) {
      SCOPED_TRACE(wrong.phrase);
      Returns r{got.experts.rows, rank.output()};
      wrong.spoil(r);
      expect_error(wrong.code, wrong.phrase, [&] {
        rank.exchange().combine(got.handle, r.rows, r.output, rank.stream(), r.options);
      });
    }
  });
  EXPECT_EQ(launches, 0u);
  rank.combine(got);
  rank.finish();
  rank.pair();
}

TEST_F(ExchangeArgumentsTest, WrongArgumentsOfCombine) {
  using Options = CombineOptions;
  run(fault_config(), [](ExchangeRank& rank) {
    const Dispatched got = rank.dispatch();
    const std::int64_t num_rows = got.experts.rows.shape(0);
    const TensorView f32 = like(rank.tokens(), DType::kF32, {16, 2});
    const TensorView few = like(rank.tokens(), DType::kBF16, {15, 1024});
    expect_returns_refused(
        rank, got,
        {{"rows is", [](Returns& r) { r.rows = {}; }},
         {"rows is", rows_are(DType::kE4M3, {num_rows, 1024})},
         {"set combine_scheme to f32", rows_are(DType::kF32, {num_rows, 1024})},
         {"rows is", rows_are(DType::kBF16, {num_rows - 1, 1024})},
         {"rows starts at",
          [=](Returns& r) {
            r.rows = behind(r.rows, 1, DType::kBF16, {num_rows, 1024});
          }},
         {"output is", [](Returns& r) { r.output = {}; }},
         {"output is i32", output_is(DType::kI32, {16, 1024})},
         {"output is", output_is(DType::kBF16, {15, 1024})},
         {"output is", output_is(DType::kBF16, {16, 1025})},
         {"topk_weights is given, but reduce is per_rank",
          option_is(&Options::topk_weights, DType::kF32, {16, 2})},
         {"bias[0] is f32", [=](Returns& r) { r.options.bias = {f32}; }},
         {"bias[1] is",
          [&](Returns& r) {
            r.options.bias = {rank.tokens(), few};
          }},
         {"shared is f32", option_is(&Options::shared, DType::kF32, {16, 2})},
         {"row_weights is bf16", option_is(&Options::row_weights, DType::kBF16, {num_rows})},
         {"row_weights is f32 [16, 2] on cuda:0, must be f32",
          option_is(&Options::row_weights, DType::kF32, {16, 2})},
         {"row_weights starts at",
          [&](Returns& r) {
            r.options.row_weights = behind(rank.tokens(), 2, DType::kF32, {num_rows});
          }},
         {"returned_weights is f32 [16, 1]",
          option_is(&Options::returned_weights, DType::kF32, {16, 1})},
         {"returned_weights is requested, but no row_weights are given",
          option_is(&Options::returned_weights, DType::kF32, {16, 2})},
         {"options.bias has 5 tensors, must be at most 4",
          [&](Returns& r) { r.options.bias = std::vector<TensorView>(5, rank.tokens()); },
          Errc::kNotSupported}});
  });
  ExchangeConfig config = fault_config();
  config.reduce = Reduce::kPerExpert;
  run(config, [](ExchangeRank& rank) {
    const char* phrase = "combine: topk_weights is";
    expect_returns_refused(rank, rank.dispatch(),
                           {{phrase, option_is(&Options::topk_weights, DType::kBF16, {16, 2})},
                            {phrase, option_is(&Options::topk_weights, DType::kF32, {15, 2})},
                            {phrase, option_is(&Options::topk_weights, DType::kF32, {16, 3})}});
  });
  config = fault_config();
  config.sends_weights = false;
  run(config, [](ExchangeRank& rank) {
    const Dispatched got = rank.dispatch();
    expect_returns_refused(
        rank, got,
        {{"row_weights is given, but weights do not travel; set sends_weights",
          option_is(&Options::row_weights, DType::kF32, {got.experts.rows.shape(0)})},
         {"returned_weights is given, but weights do not travel",
          option_is(&Options::returned_weights, DType::kF32, {16, 2})}});
  });
}

TEST_F(ExchangeArgumentsTest, HandlesThatAreUsedWrongly) {
  run_ranks(1, [](const Group& group) {
    const cuda::DeviceGuard guard(0);
    ExchangeRank rank(group, fault_config());
    ExchangeRank other(group, fault_config());
    Exchange& exchange = rank.exchange();
    const auto combine = [&](const DispatchHandle& handle, const TensorView& rows) {
      exchange.combine(handle, rows, rank.output(), rank.stream());
    };
    expect_invalid("the handle is not alive here", [&] { combine({}, rank.tokens()); });
    expect_invalid("the handle is not alive here", [&] { exchange.release({}); });

    const DispatchHandle sent =
        exchange.dispatch_send(rank.tokens(), rank.ids(), {}, rank.stream());
    expect_invalid("was sent by dispatch last, must have been received from dispatch",
                   [&] { combine(sent, rank.tokens()); });
    expect_invalid("1 handles are alive, max_in_flight is 1", [&] { (void)rank.dispatch(); });
    const Dispatched got = exchange.dispatch_receive(sent, rank.stream());
    expect_invalid("was received from dispatch last, must have been sent by dispatch",
                   [&] { (void)exchange.dispatch_receive(sent, rank.stream()); });
    expect_invalid("must have been sent by combine",
                   [&] { exchange.combine_receive(got.handle, rank.output(), rank.stream()); });
    const Dispatched foreign = other.dispatch();
    expect_invalid("the handle is not alive here",
                   [&] { combine(foreign.handle, foreign.experts.rows); });
    other.combine(foreign);
    other.finish();

    combine(got.handle, got.experts.rows);
    expect_invalid("the handle is not alive here", [&] { combine(got.handle, got.experts.rows); });
    const Dispatched again = rank.dispatch();
    expect_invalid("the handle is not alive here", [&] { combine(got.handle, got.experts.rows); });
    exchange.release(again.handle);
    expect_invalid("the handle is not alive here",
                   [&] { combine(again.handle, again.experts.rows); });
    expect_invalid("the handle is not alive here", [&] { exchange.release(again.handle); });
    rank.finish();
    rank.pair();
    rank.finish();
  });
}

// Two of the ranks share a GPU, and all are threads.
TEST_F(ExchangeArgumentsTest, LegacyStreamOfRanksThatShareAGpu) {
  run_ranks(num_gpus() + 1, [](const Group& group) {
    const Device device = gpu_of(group.rank());
    const cuda::DeviceGuard guard(device.index);
    ExchangeRank rank(group, fault_config());
    for (const Stream stream : {Stream::cuda(cudaStreamLegacy, device.index),
                                Stream::cuda(cudaStream_t{}, device.index)}) {
      if (!rank.exchange().is_shared_gpu()) continue;
      expect_invalid("give each rank a stream of its own", [&] {
        (void)rank.exchange().dispatch(rank.tokens(), rank.ids(), {}, stream);
      });
    }
    rank.pair();
    rank.finish();
  });
}

TEST_F(ExchangeArgumentsTest, AsManyHandlesAsConfigured) {
  ExchangeConfig config = fault_config();
  config.max_in_flight = 2;
  run(config, [](ExchangeRank& rank) {
    const Dispatched first = rank.dispatch();
    const Dispatched second = rank.dispatch();
    expect_invalid("2 handles are alive, max_in_flight is 2; combine or release one first",
                   [&] { (void)rank.dispatch(); });
    rank.combine(second);
    const Dispatched third = rank.dispatch();
    rank.combine(first);
    rank.combine(third);
    rank.finish();
  });
}

TEST_F(ExchangeArgumentsTest, WrongOptionsOfTheExchange) {
  run_ranks(1, [](const Group& group) {
    const cuda::DeviceGuard guard(0);
    const auto make = [&](ExchangeOptions options) {
      options.device = Device::cuda(0);
      const Exchange exchange(group, fault_config(), options);
    };
    expect_invalid("num_ctas is -1", [&] { make({.num_ctas = -1}); });
    expect_invalid("timeout_ms is -1, must be from 0", [&] { make({.timeout_ms = -1}); });
    expect_invalid("timeout_ms is 9223372036854775807",
                   [&] { make({.timeout_ms = std::numeric_limits<std::int64_t>::max()}); });
    expect_invalid("none_such", [&] { make({.heap = "none_such"}); });
    const ExchangeOptions on_gpu{.device = Device::cuda(0)};
    ExchangeConfig wide = fault_config();
    wide.num_topk = 33;
    expect_error(Errc::kNotSupported, "num_topk is 33, must be at most 32",
                 [&] { const Exchange exchange(group, wide, on_gpu); });
    ExchangeConfig crowded = fault_config();
    crowded.num_experts = 16384;
    crowded.num_topk = 3;
    crowded.max_tokens_per_rank = 87'381;
    expect_error(Errc::kNotSupported, "max_tokens_per_rank 87381 x num_topk 3 is 262143",
                 [&] { const Exchange exchange(group, crowded, on_gpu); });
  });
}

}  // namespace
}  // namespace switchyard
