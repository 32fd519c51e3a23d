// SPDX-License-Identifier: Apache-2.0
//
// Tensors said to lie on a GPU, at an address that nobody may read, given to calls that work on the
// host: every public function that reads or writes tensors refuses each of them before it touches
// memory, and names both devices.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/eplb.h"
#include "switchyard/expert_placement.h"
#include "switchyard/expert_shapes.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/permute.h"
#include "switchyard/prepare_finalize_factory.h"
#include "switchyard/quantize_batched.h"
#include "switchyard/quantize_input.h"
#include "switchyard/router.h"
#include "switchyard/scale_layout.h"

#include "support/elements.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::error_of;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The same shape on cuda:0.
TensorView far(const TensorView& near) {
  std::vector<std::int64_t> shape;
  for (int dim = 0; dim < near.num_dims(); ++dim) shape.push_back(near.shape(dim));
  return TensorView(reinterpret_cast<const void*>(std::uintptr_t{4096}), near.dtype(), shape,
                    Device::cuda(0));
}

// Calls with each of the arguments far in turn, `call(args)`; all near, the call works.
void expect_refused(const std::string& function, std::vector<TensorView> near,
                    const std::function<void(const std::vector<TensorView>&)>& call) {
  SCOPED_TRACE(function);
  for (std::size_t i = 0; i < near.size(); ++i) {
    std::vector<TensorView> args = near;
    args[i] = far(near[i]);
    const Error error = error_of([&] { call(args); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(function), HasSubstr(" on cuda:0"), HasSubstr("must lie on cpu")))
        << "argument " << i;
  }
  ASSERT_NO_THROW(call(near));
}

constexpr std::int64_t kHidden = 128;
using Args = std::vector<TensorView>;

Tensor f32(std::initializer_list<std::int64_t> shape, float value = 1.0f) {
  Tensor tensor(DType::kF32, shape);
  std::fill_n(tensor.as<float>(), tensor.view().num_elements(), value);
  return tensor;
}

TEST(WrongDeviceTest, Quantize) {
  const Tensor x = f32({2, kHidden});
  const Tensor q(DType::kE4M3, {2, kHidden});
  const Tensor packed(DType::kE2M1, {2, kHidden});
  const Tensor scales = f32({2, 1});
  const Tensor block_scales(DType::kE4M3, {2, kHidden / 16});
  const Tensor one = f32({1});
  const Stream host = Stream::host();
  expect_refused("quantize", {x, q, scales},
                 [](const Args& a) { quantize(a[0], schemes::kFp8Token, a[1], a[2]); });
  expect_refused("quantize", {x, packed, block_scales, one},
                 [&](const Args& a) { quantize(a[0], schemes::kNvfp4, a[1], a[2], host, a[3]); });
  expect_refused("dequantize", {packed, block_scales, x, one},
                 [&](const Args& a) { dequantize(a[0], a[1], schemes::kNvfp4, a[2], host, a[3]); });
  expect_refused("silu_mul_quantize", {f32({2, 2 * kHidden}), q, scales},
                 [](const Args& a) { silu_mul_quantize(a[0], schemes::kFp8Token, a[1], a[2]); });
  expect_refused(
      "silu_mul_quantize", {f32({2, 2 * kHidden}), packed, block_scales, one}, [&](const Args& a) {
        silu_mul_quantize(a[0], schemes::kNvfp4, a[1], a[2], host, ActivationScale::kScheme, a[3]);
      });
  const Tensor counts(DType::kI32, {1});
  const Tensor q3(DType::kE4M3, {1, 2, kHidden});
  expect_refused("quantize_batched", {f32({1, 2, kHidden}), counts, q3, f32({1, 1, 1}), one},
                 [&](const Args& a) {
                   quantize_batched(a[0], a[1], schemes::kFp8Tensor, a[2], a[3], host, a[4]);
                 });
  expect_refused(
      "silu_mul_quantize_batched", {f32({1, 2, 2 * kHidden}), counts, q3, f32({1, 2, 1})},
      [](const Args& a) { silu_mul_quantize_batched(a[0], a[1], schemes::kFp8Token, a[2], a[3]); });
  QuantizeInputConfig config;
  config.quant_dtype = "fp8_e4m3";
  expect_refused("quantize_input", {x, one},
                 [&](const Args& a) { (void)quantize_input(a[0], a[1], config); });
  expect_refused("quantize_input", {x, one}, [](const Args& a) {
    (void)quantize_input(a[0], schemes::kNvfp4, ScaleLayout::kSwizzled, a[1]);
  });
  expect_refused("fake_quantize", {x, f32({2, kHidden}), one},
                 [](const Args& a) { fake_quantize(a[0], schemes::kNvfp4, a[1], a[2]); });
}

TEST(WrongDeviceTest, ScaleLayouts) {
  const Tensor bytes(DType::kE8M0, {4, 8});
  const Tensor words(DType::kI32, {4, 2});
  const Tensor tiles(DType::kE8M0, {1, 2, 32, 4, 4});
  expect_refused("relayout_scales", {bytes, tiles},
                 [](const Args& a) { relayout_scales(a[0], a[1]); });
  expect_refused("swizzle_scales", {bytes}, [](const Args& a) { (void)swizzle_scales(a[0]); });
  expect_refused("unswizzle_scales", {tiles},
                 [](const Args& a) { (void)unswizzle_scales(a[0], 4, 8); });
  expect_refused("pack_ue8m0", {bytes, words}, [](const Args& a) { pack_ue8m0(a[0], a[1]); });
  expect_refused("unpack_ue8m0", {words, bytes}, [](const Args& a) { unpack_ue8m0(a[0], a[1]); });
  // Views of views read nothing: they stay where they are.
  for (const TensorView& view : {far(bytes), far(f32({1})), far(f32({4})), far(f32({2, 2, 2}))}) {
    EXPECT_EQ(normalize_scales_shape(view).device(), Device::cuda(0));
    EXPECT_EQ(normalize_batched_scales_shape(view, 1).device(), Device::cuda(0));
  }
}

TEST(WrongDeviceTest, Permute) {
  const Tensor ids(DType::kI32, {2, 1});
  const Tensor map(DType::kI32, {1});
  const Tensor counts(DType::kI32, {1});
  const Tensor errors(DType::kI32, {1});
  const Stream host = Stream::host();
  expect_refused("count_expert_num_tokens", {ids, counts, map, errors},
                 [&](const Args& a) { count_expert_num_tokens(a[0], a[1], a[2], host, a[3]); });
  expect_refused("apply_expert_map", {ids, map, Tensor(DType::kI32, {2, 1}), errors},
                 [&](const Args& a) { apply_expert_map(a[0], a[1], a[2], host, a[3]); });
  counts.as<std::int32_t>()[0] = 2;
  expect_refused("expert_num_tokens_round_up_and_sum", {counts},
                 [](const Args& a) { (void)expert_num_tokens_round_up_and_sum(a[0]); });
  expect_refused(
      "expert_num_tokens_round_up_and_sum", {counts, Tensor(DType::kI64, {1}), errors},
      [&](const Args& a) { expert_num_tokens_round_up_and_sum(a[0], 8, a[1], host, a[2]); });
  expect_refused("", {counts}, [](const Args& a) { (void)compute_aligned_m(2, 1, 1, 8, a[0]); });

  const Tensor x = f32({2, kHidden});
  const Tensor scales = f32({2, 1});
  const Tensor rows = f32({2, kHidden});
  const Tensor m_indices(DType::kI32, {2});
  const Tensor inv_perm(DType::kI32, {2, 1});
  const Tensor first_row(DType::kI64, {1});
  const Tensor found(DType::kI32, {1});
  const Tensor needed(DType::kI64, {1});
  const Tensor moved_scales = f32({2, 1});
  expect_refused("ep_scatter",
                 {x, scales, ids, map, counts, rows, moved_scales, m_indices, inv_perm, first_row,
                  found, needed, errors},
                 [&](const Args& a) {
                   ep_scatter(a[0], a[1], a[2],
                              {.expert_map = a[3], .expert_num_tokens = a[4], .alignment = 1},
                              {a[5], a[6], a[7], a[8], a[9], a[10], a[11]}, host, {}, a[12]);
                 });
  expect_refused(
      "plan_permute", {ids, map, counts, m_indices, inv_perm, first_row, found, needed, errors},
      [&](const Args& a) {
        plan_permute(a[0], {.expert_map = a[1], .expert_num_tokens = a[2], .alignment = 1},
                     {{}, {}, a[3], a[4], a[5], a[6], a[7]}, host, {}, a[8]);
      });
  expect_refused("plan_permute", {ids, map, counts}, [](const Args& a) {
    (void)plan_permute(a[0], 1, {.expert_map = a[1], .expert_num_tokens = a[2], .alignment = 1});
  });
  expect_refused("permute", {x, scales, ids, map, counts, rows}, [](const Args& a) {
    (void)permute(a[0], a[1], a[2], 1,
                  {.expert_map = a[3], .expert_num_tokens = a[4], .alignment = 1}, {.x = a[5]});
  });
  const Tensor weights = f32({2, 1});
  expect_refused("ep_gather", {rows, ids, weights, inv_perm, map, x, errors},
                 [&](const Args& a) { ep_gather(a[0], a[1], a[2], a[3], a[4], a[5], host, a[6]); });
  expect_refused("unpermute_and_reduce", {rows, inv_perm, weights, x, errors},
                 [&](const Args& a) { unpermute_and_reduce(a[0], a[1], a[2], a[3], host, a[4]); });
  const PermutePlan made = plan_permute(ids, 1, {.alignment = 1});
  expect_refused("unpermute_and_reduce", {rows, weights, x},
                 [&](const Args& a) { unpermute_and_reduce(a[0], made, a[1], a[2]); });
}

TEST(WrongDeviceTest, WeightAndReduce) {
  const Tensor rows = f32({2, 1, kHidden});
  const Tensor weights = f32({2, 1});
  const Tensor ids(DType::kI32, {2, 1});
  const Tensor map(DType::kI32, {1});
  const Tensor output = f32({2, kHidden});
  const Tensor errors(DType::kI32, {1});
  expect_refused("weight_and_reduce", {rows, weights, ids, map, output, errors}, [](const Args& a) {
    weight_and_reduce(WeightAndReduce::contiguous(true), {a[0], a[1], a[2], a[3]}, a[4],
                      Stream::host(), {}, a[5]);
  });
  expect_refused("weight_and_reduce", {f32({1, 2, kHidden}), weights, ids, output},
                 [](const Args& a) {
                   weight_and_reduce(WeightAndReduce::naive_batched(0), {a[0], a[1], a[2]}, a[3]);
                 });
  expect_refused("weight_and_reduce", {output, f32({2, kHidden})}, [](const Args& a) {
    weight_and_reduce(WeightAndReduce::no_op(), {a[0], {}, {}}, a[1]);
  });
}

TEST(WrongDeviceTest, Router) {
  const Tensor hidden = f32({2, kHidden});
  const Tensor logits = f32({2, 4});
  expect_refused("router_logits", {hidden, f32({4, kHidden}), logits},
                 [](const Args& a) { router_logits(a[0], a[1], a[2]); });
  RouterConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  expect_refused("select_experts", {logits, f32({4}), Tensor(DType::kI32, {2, 2}), f32({2, 2})},
                 [&](const Args& a) { select_experts(config, a[0], a[1], a[2], a[3]); });
}

TEST(WrongDeviceTest, IdsOfPlacementsAndOfLoadBalancing) {
  const Tensor ids(DType::kI32, {2, 2});
  const Tensor out(DType::kI32, {2, 2});
  const std::vector<std::int32_t> table{0, 1};
  const ExpertMap map = determine_expert_map(2, 0, 4, PlacementStrategy::kLinear);
  const LogicalMaps maps = compute_logical_maps(std::vector<std::int32_t>{0, 1, 0}, 2);
  expect_refused("map_expert_ids", {ids, out},
                 [&](const Args& a) { map_expert_ids(a[0], table, a[1]); });
  expect_refused("global_to_local_ids", {ids, out},
                 [&](const Args& a) { global_to_local_ids(a[0], map, a[1]); });
  expect_refused("local_to_global_ids", {ids, out},
                 [&](const Args& a) { local_to_global_ids(a[0], map, a[1]); });
  expect_refused("map_logical_to_physical", {ids, out},
                 [&](const Args& a) { map_logical_to_physical(a[0], maps, a[1]); });
  ExpertLoad load(4, 1);
  expect_refused("expert_load", {ids}, [&](const Args& a) { load.add_step(a[0], 2); });
  expect_refused("expert_ranges_from_m_indices", {Tensor(DType::kI32, {4})},
                 [](const Args& a) { (void)expert_ranges_from_m_indices(a[0], 1, 2); });
}

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

TEST(WrongDeviceTest, Exchange) {
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

TEST(WrongDeviceTest, StreamsOfAnExchange) {
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

TEST(WrongDeviceTest, PrepareFinalize) {
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
                              ? test::zeros_like(prepared.experts.rows)
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

TEST(WrongDeviceTest, Experts) {
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

TEST(WrongDeviceTest, ModularKernel) {
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

TEST(WrongDeviceTest, StaticScalesOfAChoice) {
  MoEConfig fields;
  fields.num_experts = 8;
  fields.num_topk = 2;
  fields.hidden = 256;
  fields.max_num_tokens = 16;
  fields.parallel = ParallelConfig::make({.dp_size = 2,
                                          .enable_expert_parallel = true,
                                          .all2all_backend = All2AllBackend::kNaive});
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
