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

using test::ExchangeRank;
using test::expect_error;
using test::fault_config;
using test::run_ranks;

constexpr Errc kBad = Errc::kInvalidArgument;

class ExchangeArgumentsTest : public testing::Test {
 protected:
  void SetUp() override { REQUIRE_GPU(); }

  static void run(const ExchangeConfig& config,
                  const std::function<void(const Group&, ExchangeRank&)>& body) {
    run_ranks(1, [&](const Group& group) {
      const cuda::DeviceGuard guard(0);
      ExchangeRank rank(group, config);
      body(group, rank);
      rank.pair();
      rank.finish();
    });
  }
};

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

TensorView like(const TensorView& view, DType dtype, std::initializer_list<std::int64_t> shape) {
  return TensorView(view.data(), dtype, shape, view.device());
}

void expect_input_refused(ExchangeRank& rank, const std::vector<WrongInput>& inputs) {
  const std::size_t launches = rank.num_launches([&] {
    for (const WrongInput& wrong : inputs) {
      SCOPED_TRACE(wrong.phrase);
      Views v(rank);
      wrong.spoil(v);
      expect_error(kBad, wrong.phrase, [&] {
        (void)rank.exchange().dispatch(v.tokens, v.ids, v.weights, rank.stream(), v.options);
      });
      expect_error(kBad, wrong.phrase, [&] {
        (void)rank.exchange().dispatch_send(v.tokens, v.ids, v.weights, rank.stream(), v.options);
      });
    }
  });
  EXPECT_EQ(launches, 0u);
}

TEST_F(ExchangeArgumentsTest, WrongInputsOfDispatch) {
  ExchangeConfig config = fault_config();
  config.sends_weights = false;
  run(config, [](const Group&, ExchangeRank& rank) {
    const TensorView f32 = like(rank.tokens(), DType::kF32, {16, 2});
    expect_input_refused(
        rank,
        {
            {"tokens is", [](Views& v) { v.tokens = {}; }},
            {"tokens is i32",
             [](Views& v) {
               v.tokens = like(v.tokens, DType::kI32, {8, 1024});
             }},
            {"tokens is",
             [](Views& v) {
               v.tokens = like(v.tokens, DType::kBF16, {16, 1023});
             }},
            {"tokens is", [](Views& v) { v.tokens = like(v.tokens, DType::kBF16, {16 * 1024}); }},
            {"tokens has 17 rows, but max_tokens_per_rank is 16",
             [](Views& v) {
               v.tokens = like(v.tokens, DType::kBF16, {17, 1024});
             }},
            {"tokens starts at",
             [](Views& v) {
               v.tokens = TensorView(v.tokens.as<std::byte>() + 1, DType::kBF16, {15, 1024},
                                     v.tokens.device());
             }},
            {"topk_ids is", [](Views& v) { v.ids = {}; }},
            {"topk_ids is f32",
             [](Views& v) {
               v.ids = like(v.ids, DType::kF32, {16, 2});
             }},
            {"topk_ids is",
             [](Views& v) {
               v.ids = like(v.ids, DType::kI64, {15, 2});
             }},
            {"topk_ids is",
             [](Views& v) {
               v.ids = like(v.ids, DType::kI32, {16, 3});
             }},
            {"topk_weights is given, but sends_weights is false",
             [&](Views& v) { v.weights = f32; }},
            {"options.scales is", [&](Views& v) { v.options.scales = f32; }},
        });
  });
}

TEST_F(ExchangeArgumentsTest, WrongWeightsOfDispatch) {
  ExchangeConfig config = fault_config();
  config.sends_weights = true;
  run(config, [](const Group&, ExchangeRank& rank) {
    expect_input_refused(rank, {
                                   {"topk_weights is bf16",
                                    [](Views& v) {
                                      v.weights = like(v.tokens, DType::kBF16, {16, 2});
                                    }},
                                   {"topk_weights is",
                                    [](Views& v) {
                                      v.weights = like(v.tokens, DType::kF32, {16, 1});
                                    }},
                                   {"topk_weights is",
                                    [](Views& v) {
                                      v.weights = like(v.tokens, DType::kF32, {15, 2});
                                    }},
                               });
  });
}

TEST_F(ExchangeArgumentsTest, WrongScalesOfDispatch) {
  ExchangeConfig config = fault_config();
  config.scheme = schemes::kFp8Block;
  run_ranks(1, [&](const Group& group) {
    const cuda::DeviceGuard guard(0);
    ExchangeRank rank(group, config);
    const auto quantized = [&](Views& v, DType dtype, std::int64_t rows, std::int64_t columns) {
      v.tokens = like(v.tokens, DType::kE4M3, {16, 1024});
      v.options.scales = like(rank.output(), dtype, {rows, columns});
    };
    expect_input_refused(
        rank, {
                  {"options.scales is",
                   [&](Views& v) {
                     v.tokens = like(v.tokens, DType::kE4M3, {16, 1024});
                   }},
                  {"options.scales is bf16", [&](Views& v) { quantized(v, DType::kBF16, 16, 8); }},
                  {"options.scales is f32", [&](Views& v) { quantized(v, DType::kF32, 16, 7); }},
                  {"options.scales is f32", [&](Views& v) { quantized(v, DType::kF32, 15, 8); }},
                  {"must be absent",
                   [&](Views& v) {
                     v.options.scales = like(v.tokens, DType::kF32, {16, 8});
                   }},
              });
  });
}

TEST_F(ExchangeArgumentsTest, WrongTensorScaleOfDispatch) {
  ExchangeConfig config = fault_config();
  config.scheme = schemes::kFp8Tensor;
  run_ranks(1, [&](const Group& group) {
    const cuda::DeviceGuard guard(0);
    ExchangeRank rank(group, config);
    const auto scale = [&](DType dtype, std::int64_t count) {
      return [&rank, dtype, count](Views& v) {
        v.options.tensor_scale = like(rank.output(), dtype, {count});
      };
    };
    expect_input_refused(rank, {
                                   {"tensor_scale is", [](Views&) {}},
                                   {"tensor_scale is bf16", scale(DType::kBF16, 1)},
                                   {"tensor_scale is f32", scale(DType::kF32, 2)},
                               });
  });
}

struct WrongReturn {
  const char* phrase;
  Errc code;
  std::function<void(TensorView& rows, TensorView& output, CombineOptions& options)> spoil;
};

TEST_F(ExchangeArgumentsTest, WrongArgumentsOfCombine) {
  run(fault_config(), [](const Group&, ExchangeRank& rank) {
    const Dispatched got = rank.dispatch();
    const std::int64_t num_rows = got.experts.rows.shape(0);
    const TensorView f32 = like(rank.tokens(), DType::kF32, {16, 2});
    using Options = CombineOptions;
    const std::vector<WrongReturn> wrongs{
        {"rows is", kBad, [](auto& rows, auto&, Options&) { rows = {}; }},
        {"rows is", kBad,
         [&](auto& rows, auto&, Options&) {
           rows = like(rows, DType::kE4M3, {num_rows, 1024});
         }},
        {"rows is", kBad,
         [&](auto& rows, auto&, Options&) {
           rows = like(rows, DType::kBF16, {num_rows - 1, 1024});
         }},
        {"rows starts at", kBad,
         [&](auto& rows, auto&, Options&) {
           rows = TensorView(rows.template as<std::byte>() + 1, DType::kBF16, {num_rows, 1024},
                             rows.device());
         }},
        {"output is", kBad, [](auto&, auto& output, Options&) { output = {}; }},
        {"output is i32", kBad,
         [](auto&, auto& output, Options&) {
           output = like(output, DType::kI32, {16, 1024});
         }},
        {"output is", kBad,
         [](auto&, auto& output, Options&) {
           output = like(output, DType::kBF16, {15, 1024});
         }},
        {"output is", kBad,
         [](auto&, auto& output, Options&) {
           output = like(output, DType::kBF16, {16, 1025});
         }},
        {"topk_weights is given, but reduce is per_rank", kBad,
         [&](auto&, auto&, Options& options) { options.topk_weights = f32; }},
        {"bias[0] is f32", kBad, [&](auto&, auto&, Options& options) { options.bias = {f32}; }},
        {"bias[1] is", kBad,
         [&](auto&, auto&, Options& options) {
           options.bias = {rank.tokens(), like(rank.tokens(), DType::kBF16, {15, 1024})};
         }},
        {"shared is f32", kBad, [&](auto&, auto&, Options& options) { options.shared = f32; }},
        {"row_weights is bf16", kBad,
         [&](auto&, auto&, Options& options) {
           options.row_weights = like(rank.tokens(), DType::kBF16, {num_rows});
         }},
        {"row_weights is f32 [16, 2] on cuda:0, must be f32", kBad,
         [&](auto&, auto&, Options& options) { options.row_weights = f32; }},
        {"row_weights starts at", kBad,
         [&](auto&, auto&, Options& options) {
           options.row_weights = TensorView(rank.tokens().as<std::byte>() + 2, DType::kF32,
                                            {num_rows}, rank.device());
         }},
        {"returned_weights is f32 [16, 1]", kBad,
         [&](auto&, auto&, Options& options) {
           options.returned_weights = like(rank.tokens(), DType::kF32, {16, 1});
         }},
        {"returned_weights is wanted, but no row_weights are given", kBad,
         [&](auto&, auto&, Options& options) { options.returned_weights = f32; }},
        {"options.bias has 5 tensors, must be at most 4", Errc::kNotSupported,
         [&](auto&, auto&, Options& options) {
           options.bias = std::vector<TensorView>(5, rank.tokens());
         }},
    };
    const std::size_t launches = rank.num_launches([&] {
      for (const WrongReturn& wrong : wrongs) {
        SCOPED_TRACE(wrong.phrase);
        TensorView rows = got.experts.rows;
        TensorView output = rank.output();
        CombineOptions options;
        wrong.spoil(rows, output, options);
        expect_error(wrong.code, wrong.phrase, [&] {
          rank.exchange().combine(got.handle, rows, output, rank.stream(), options);
        });
      }
    });
    EXPECT_EQ(launches, 0u);
    rank.combine(got);  // the handle is unchanged
    rank.finish();
  });
}

TEST_F(ExchangeArgumentsTest, WrongWeightsOfCombine) {
  ExchangeConfig config = fault_config();
  config.reduce = Reduce::kPerExpert;
  run(config, [](const Group&, ExchangeRank& rank) {
    const Dispatched got = rank.dispatch();
    const std::size_t launches = rank.num_launches([&] {
      for (const TensorView& weights :
           {like(rank.tokens(), DType::kBF16, {16, 2}), like(rank.tokens(), DType::kF32, {15, 2}),
            like(rank.tokens(), DType::kF32, {16, 3})}) {
        expect_error(kBad, "combine: topk_weights is", [&] {
          rank.exchange().combine(got.handle, got.experts.rows, rank.output(), rank.stream(),
                                  {.topk_weights = weights});
        });
      }
    });
    EXPECT_EQ(launches, 0u);
    rank.combine(got);
    rank.finish();
  });
}

TEST_F(ExchangeArgumentsTest, WeightsThatDoNotTravelDoNotGoHome) {
  ExchangeConfig config = fault_config();
  config.sends_weights = false;
  run(config, [](const Group&, ExchangeRank& rank) {
    const Dispatched got = rank.dispatch();
    const auto combine = [&](const CombineOptions& options) {
      rank.exchange().combine(got.handle, got.experts.rows, rank.output(), rank.stream(), options);
    };
    const std::size_t launches = rank.num_launches([&] {
      expect_error(kBad, "row_weights is given, but weights do not travel; set sends_weights", [&] {
        combine({.row_weights = like(rank.tokens(), DType::kF32, {got.experts.rows.shape(0)})});
      });
      expect_error(kBad, "returned_weights is given, but weights do not travel", [&] {
        combine({.returned_weights = like(rank.tokens(), DType::kF32, {16, 2})});
      });
    });
    EXPECT_EQ(launches, 0u);
    rank.combine(got);
    rank.finish();
  });
}

TEST_F(ExchangeArgumentsTest, HandlesThatAreUsedWrongly) {
  run(fault_config(), [](const Group& group, ExchangeRank& rank) {
    Exchange& exchange = rank.exchange();
    ExchangeRank other(group, fault_config());
    const auto combine = [&](const DispatchHandle& handle, const TensorView& rows) {
      exchange.combine(handle, rows, rank.output(), rank.stream());
    };
    expect_error(kBad, "the handle is not alive here", [&] { combine({}, rank.tokens()); });
    expect_error(kBad, "the handle is not alive here", [&] { exchange.release({}); });

    const DispatchHandle sent =
        exchange.dispatch_send(rank.tokens(), rank.ids(), {}, rank.stream());
    expect_error(kBad, "was sent by dispatch last, must have been received from dispatch",
                 [&] { combine(sent, rank.tokens()); });
    expect_error(kBad, "1 handles are alive, max_in_flight is 1", [&] { (void)rank.dispatch(); });
    const Dispatched got = exchange.dispatch_receive(sent, rank.stream());
    expect_error(kBad, "was received from dispatch last, must have been sent by dispatch",
                 [&] { (void)exchange.dispatch_receive(sent, rank.stream()); });
    expect_error(kBad, "must have been sent by combine",
                 [&] { exchange.combine_receive(got.handle, rank.output(), rank.stream()); });
    const Dispatched foreign = other.dispatch();
    expect_error(kBad, "the handle is not alive here",
                 [&] { combine(foreign.handle, foreign.experts.rows); });
    other.combine(foreign);
    other.finish();

    combine(got.handle, got.experts.rows);
    expect_error(kBad, "the handle is not alive here",
                 [&] { combine(got.handle, got.experts.rows); });
    const Dispatched again = rank.dispatch();
    expect_error(kBad, "the handle is not alive here",
                 [&] { combine(got.handle, got.experts.rows); });
    exchange.release(again.handle);
    expect_error(kBad, "the handle is not alive here",
                 [&] { combine(again.handle, again.experts.rows); });
    expect_error(kBad, "the handle is not alive here", [&] { exchange.release(again.handle); });
    rank.finish();
  });
}

TEST_F(ExchangeArgumentsTest, AsManyHandlesAsConfigured) {
  ExchangeConfig config = fault_config();
  config.max_in_flight = 2;
  run(config, [](const Group&, ExchangeRank& rank) {
    const Dispatched first = rank.dispatch();
    const Dispatched second = rank.dispatch();
    expect_error(kBad, "2 handles are alive, max_in_flight is 2; combine or release one first",
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
    expect_error(kBad, "num_ctas is -1", [&] { make({.num_ctas = -1}); });
    expect_error(kBad, "timeout_ms is -1, must be from 0", [&] { make({.timeout_ms = -1}); });
    expect_error(kBad, "timeout_ms is 9223372036854775807",
                 [&] { make({.timeout_ms = std::numeric_limits<std::int64_t>::max()}); });
    expect_error(kBad, "none_such", [&] { make({.heap = "none_such"}); });
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
