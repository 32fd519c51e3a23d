// SPDX-License-Identifier: Apache-2.0
//
// Exchange, prepare/finalize, experts and the modular kernel refuse tensors and streams of another
// device, and work on.

#include <functional>
#include <vector>

#include "switchyard/modular_kernel.h"
#include "switchyard/prepare_finalize_factory.h"

#include "support/elements.h"
#include "wrong_device.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::AllOf;
using ::testing::HasSubstr;

ExchangeConfig exchange_config(const QuantScheme& scheme) {
  ExchangeConfig config;
  config.num_experts = 2;
  config.num_topk = 1;
  config.hidden = kHidden;
  config.max_tokens_per_rank = 2;
  config.scheme = scheme;
  config.reduce = Reduce::kPerExpert;
  config.payload_bytes = {4};
  return config;
}

TEST(WrongDeviceLayerTest, Exchange) {
  run_ranks(1, [](const Group& group) {
    Exchange exchange(group, exchange_config(schemes::kFp8Token));
    Exchange tensor_exchange(group, exchange_config(schemes::kFp8Tensor));
    const Stream host = Stream::host();
    const Tensor codes(DType::kE4M3, {2, kHidden});
    const Tensor x = f32({2, kHidden});
    const Tensor ids(DType::kI32, {2, 1});
    const Tensor weights = f32({2, 1});
    const Tensor payload(DType::kU8, {2, 4});
    const auto release = [](Exchange& from, const Dispatched& got) { from.release(got.handle); };
    expect_refused("dispatch", {codes, ids, weights, f32({2, 1}), payload}, [&](const Args& a) {
      DispatchOptions options;
      options.scales = a[3];
      options.payloads = {a[4]};
      release(exchange, exchange.dispatch(a[0], a[1], a[2], host, options));
      const DispatchHandle sent = exchange.dispatch_send(a[0], a[1], a[2], host, options);
      exchange.release(sent);
    });
    expect_refused("dispatch", {x, ids, weights, f32({1}), payload}, [&](const Args& a) {
      DispatchOptions options;
      options.tensor_scale = a[3];
      options.payloads = {a[4]};
      release(tensor_exchange, tensor_exchange.dispatch(a[0], a[1], a[2], host, options));
    });
    DispatchOptions options;
    options.payloads = {payload};
    const Dispatched first = exchange.dispatch(x, ids, weights, host, options);
    exchange.release(first.handle);
    expect_refused("dispatch_again", {x, weights, payload}, [&](const Args& a) {
      DispatchOptions again;
      again.payloads = {a[2]};
      release(exchange, exchange.dispatch_again(first.handle, a[0], a[1], host, again));
    });
    const Dispatched got = exchange.dispatch(x, ids, weights, host, options);
    const Tensor bf16(DType::kBF16, {2, kHidden});
    DispatchHandle handle = got.handle;
    expect_refused("combine", {x, bf16, weights, f32({2}), bf16, bf16, f32({2, 1})},
                   [&](const Args& a) {
                     CombineOptions returned;
                     returned.topk_weights = a[2];
                     returned.row_weights = a[3];
                     returned.bias = {a[4]};
                     returned.shared = a[5];
                     returned.returned_weights = a[6];
                     exchange.check_output(handle, a[1], returned);
                     exchange.combine(handle, a[0], a[1], host, returned);
                   });
    expect_refused("combine", {x, bf16}, [&](const Args& a) {
      if (a[0].device().is_cpu() && a[1].device().is_cuda()) {
        exchange.check_output(handle, a[1]);  // nothing is sent
      }
      handle = exchange.reopen(first.handle);
      try {
        exchange.combine_send(handle, a[0]);
        exchange.combine_receive(handle, a[1]);
      } catch (const Error&) {
        exchange.release(handle);
        throw;
      }
    });
  });
}

TEST(WrongDeviceLayerTest, StreamsOfAnExchange) {
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = exchange_config(schemes::kNone);
    config.payload_bytes.clear();
    Exchange exchange(group, config);
    const Tensor x(DType::kBF16, {2, kHidden});
    const Tensor ids(DType::kI32, {2, 1});
    const Stream wrong = Stream::default_of(Device::cuda(0));
    const auto refused = [](const char* words, const std::function<void()>& call) {
      const Error error = error_of(call);
      EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(words), HasSubstr("the stream is of cuda:0, must be of cpu")));
    };
    refused("dispatch", [&] { exchange.dispatch(x, ids, {}, wrong); });
    refused("dispatch", [&] { exchange.dispatch_send(x, ids, {}, wrong); });
    const DispatchHandle handle = exchange.dispatch_send(x, ids);
    refused("dispatch_receive", [&] { exchange.dispatch_receive(handle, wrong); });
    const Dispatched got = exchange.dispatch_receive(handle);
    refused("combine", [&] { exchange.combine(handle, got.experts.rows, x, wrong); });
    refused("combine", [&] { exchange.combine_send(handle, got.experts.rows, wrong); });
    exchange.combine_send(handle, got.experts.rows);
    refused("combine", [&] { exchange.combine_receive(handle, x, wrong); });
    exchange.combine_receive(handle, x);
    refused("reopen", [&] { exchange.reopen(handle, wrong); });
    refused("dispatch_again", [&] { exchange.dispatch_again(handle, x, {}, wrong); });
  });
}

PrepareFinalizeConfig layer_config() {
  PrepareFinalizeConfig config;
  config.num_experts = 2;
  config.num_topk = 1;
  config.hidden = kHidden;
  config.max_tokens_per_rank = 2;
  return config;
}

constexpr PrepareKind kGroupedAndNot[] = {PrepareKind::kLowLatency, PrepareKind::kElasticDecode,
                                          PrepareKind::kElasticPrefill, PrepareKind::kLocal};

TEST(WrongDeviceLayerTest, PrepareFinalize) {
  for (const PrepareKind kind : kGroupedAndNot) {
    run_ranks(1, [&](const Group& group) {
      PrepareFinalizeConfig config = layer_config();
      config.global_to_physical = {1, 0};  // ids are read before they are sent
      const auto object = make_prepare_finalize(kind, group, config);
      EXPECT_EQ(object->device(), Device::cpu());
      const Tensor hidden(DType::kBF16, {2, kHidden});
      const Tensor ids(DType::kI32, {2, 1});
      const Tensor weights = f32({2, 1});
      for (const bool weighs : {false, true}) {
        expect_refused("prepare", {hidden, ids, weights}, [&](const Args& a) {
          object->prepare({a[0], a[1], a[2], weighs});
          object->abandon(0, "enough");
        });
      }
      const Prepared prepared = object->prepare({hidden, ids, weights});
      const bool is_grouped = prepared.experts.first_row.has_value();
      // Rows of each choice are summed first where rows lie by token.
      const Tensor rows = is_grouped
                              ? zeros_like(prepared.experts.rows)
                              : Tensor(DType::kBF16, {prepared.experts.rows.shape(0), 1, kHidden});
      const Tensor output(DType::kBF16, {2, kHidden});
      const Tensor shared(DType::kBF16, {2, kHidden});
      const Tensor reduced(DType::kBF16, {prepared.experts.rows.shape(0), kHidden});
      Args args{output, rows, shared};
      if (!is_grouped) args.push_back(reduced);
      expect_refused("", args, [&](const Args& a) {
        FinalizeArguments arguments{a[0], a[1]};
        arguments.shared = a[2];
        if (!is_grouped) arguments.reduced = a[3];
        object->finalize(arguments);
      });
    });
  }
}

Tensor random_weights(std::initializer_list<std::int64_t> shape) {
  return Tensor(DType::kBF16, shape);
}

TEST(WrongDeviceLayerTest, Experts) {
  const Tensor gate = random_weights({2, 16, kHidden});
  const Tensor down = random_weights({2, kHidden, 16});
  const Tensor one = f32({1});
  const Tensor gate_bias = f32({2, 16});
  const Tensor down_bias = f32({2, kHidden});
  for (const char* name : {"exact", "onednn"}) {
    SCOPED_TRACE(name);
    try {
      (void)make_experts(name, {gate, gate, down, {}, {}, {}});
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Errc::kNotAvailable) << error.what();
      continue;
    }
    expect_refused(name, {gate, gate, down, gate_bias, gate_bias, down_bias, one},
                   [&](const Args& a) {
                     ExpertWeights weights{a[0], a[1], a[2], {}, {}, {}};
                     weights.gate_bias = a[3];
                     weights.up_bias = a[4];
                     weights.down_bias = a[5];
                     ExpertOptions options;
                     options.intermediate = schemes::kFp8Tensor;
                     options.intermediate_scale = a[6];
                     (void)make_experts(name, weights, options);
                   });
    const auto experts = make_experts(name, {gate, gate, down, {}, {}, {}});
    const Tensor codes(DType::kE4M3, {4, kHidden});
    const Tensor scales = f32({4, 1});
    const Tensor first_row(DType::kI64, {2});
    const Tensor num_rows(DType::kI32, {2});
    const Tensor output(DType::kBF16, {4, kHidden});
    std::vector<std::byte> workspace(experts->workspace_bytes(codes));
    const auto apply = [&](const Args& a, Stream stream) {
      experts->apply({a[0], a[1], schemes::kFp8Token, a[2], a[3]}, a[4], workspace, stream);
    };
    expect_refused("apply", {codes, scales, first_row, num_rows, output},
                   [&](const Args& a) { apply(a, Stream::host()); });
    const Error error = error_of([&] {
      apply({codes, scales, first_row, num_rows, output}, Stream::default_of(Device::cuda(0)));
    });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("the stream is of cuda:0, must be of cpu"));
  }
}

TEST(WrongDeviceLayerTest, ModularKernel) {
  const Tensor gate = random_weights({2, 16, kHidden});
  const Tensor down = random_weights({2, kHidden, 16});
  const Tensor shared_gate = f32({kHidden});
  const auto make = [&](const TensorView& gate_of_shared) {
    const ExpertWeights all{gate, gate, down, {}, {}, {}};
    const ExpertWeights one{TensorView(gate.data(), DType::kBF16, {1, 16, kHidden}),
                            TensorView(gate.data(), DType::kBF16, {1, 16, kHidden}),
                            TensorView(down.data(), DType::kBF16, {1, kHidden, 16}),
                            {},
                            {},
                            {}};
    return ModularKernel(make_local(layer_config()), make_exact_experts(all),
                         {make_exact_experts(one), gate_of_shared});
  };
  expect_refused("shared gate", {shared_gate}, [&](const Args& a) { (void)make(a[0]); });
  ModularKernel kernel = make(shared_gate);
  EXPECT_EQ(kernel.device(), Device::cpu());
  const Tensor hidden(DType::kBF16, {2, kHidden});
  const Tensor ids(DType::kI32, {2, 1});
  const Tensor weights = f32({2, 1});
  const Tensor output(DType::kBF16, {2, kHidden});
  expect_refused("", {hidden, ids, weights, output}, [&](const Args& a) {
    kernel.apply({a[0], a[1], a[2]}, a[3]);
  });
  const Error error = error_of([&] {
    kernel.apply({hidden, ids, weights}, output, Stream::default_of(Device::cuda(0)));
  });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("the stream is of cuda:0, must be of cpu"));
  kernel.apply({hidden, ids, weights}, output);
}

// Of a build without CUDA, or a machine without a GPU.
TEST(WrongDeviceLayerTest, ADeviceThatIsNotThereIsNotAvailable) {
  if (num_cuda_devices() > 0) GTEST_SKIP() << "this machine has a GPU";
  const Device device = Device::cuda(0);
  const auto refused = [](const std::function<void()>& call) {
    const Error error = error_of(call);
    EXPECT_EQ(error.code(), Errc::kNotAvailable) << error.what();
  };
  const Tensor gate(DType::kBF16, {2, 16, kHidden});
  const Tensor down(DType::kBF16, {2, kHidden, 16});
  for (const char* name : {"exact", "cublas"}) {
    refused([&] { (void)make_experts(name, {gate, gate, down, {}, {}, {}}, {}, device); });
  }
  run_ranks(1, [&](const Group& group) {
    ExchangeOptions options;
    options.device = device;
    refused([&] { const Exchange exchange(group, exchange_config(schemes::kNone), options); });
    refused([&] { (void)make_low_latency(group, layer_config(), options); });
    refused([&] { (void)make_local(layer_config(), options); });
  });
}

TEST(WrongDeviceLayerTest, StaticScalesOfAChoice) {
  MoEConfig fields;
  fields.num_experts = 8;
  fields.num_topk = 2;
  fields.hidden = 256;
  fields.max_num_tokens = 16;
  fields.parallel = ParallelConfig::make(
      {.dp_size = 2, .enable_expert_parallel = true, .all2all_backend = All2AllBackend::kNaive});
  const MoEConfig moe = MoEConfig::make(fields);
  const Tensor scale = f32({1});
  expect_refused("a1_scale", {scale}, [&](const Args& a) {
    (void)choose_prepare_finalize(moe, QuantConfig::fp8_w8a8({.a1_scale = a[0]}));
  });
  expect_refused("a1_gscale", {scale}, [&](const Args& a) {
    (void)choose_prepare_finalize(moe, QuantConfig::nvfp4({.a1_gscale = a[0]}));
  });
}

}  // namespace
}  // namespace switchyard
