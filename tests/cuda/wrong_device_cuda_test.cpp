// SPDX-License-Identifier: Apache-2.0
//
// A tensor or a stream of another device is refused before anything reads it, in every family of
// functions, by a message that names the argument and both devices. The functions need no GPU to
// refuse; objects that are made on a GPU do.

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/exchange.h"
#include "switchyard/experts.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/permute.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/quantize_batched.h"
#include "switchyard/router.h"
#include "switchyard/scale_layout.h"
#include "switchyard/weight_and_reduce.h"

#include "experts_case.h"
#include "gpu_arena.h"
#include "small_layer.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard::test {
namespace {

using Views = std::vector<TensorView>;
using Call = std::function<void(const Views& v, Stream stream)>;

/// A call with the names of its tensors, in the order in which `call` takes them.
struct Function {
  std::vector<std::string> arguments;
  Call call;
};

void PrintTo(const Function& function, std::ostream* out) { *out << function.arguments.size(); }

// Memory of the host under the name of any device: devices are compared before anything is read.
TensorView view_on(Device device) {
  static const Tensor memory(DType::kF32, {4, 4});
  return TensorView(memory.data(), DType::kF32, {4, 4}, device);
}

void expect_refused(const std::string& argument, Device wrong, Device right,
                    const std::function<void()>& call) {
  SCOPED_TRACE(argument + " on " + name_of(wrong) + " for " + name_of(right));
  expect_error(Errc::kInvalidArgument,
               " on " + name_of(wrong) + ", must lie on " + name_of(right) + "; copy it there",
               call);
  expect_error(Errc::kInvalidArgument, ": " + argument + " is ", call);
}

void expect_stream_refused(Device wrong, Device right, const std::function<void()>& call) {
  SCOPED_TRACE("stream of " + name_of(wrong) + " for " + name_of(right));
  expect_error(Errc::kInvalidArgument,
               "the stream is of " + name_of(wrong) + ", must be of " + name_of(right), call);
}

// Each argument in turn lies elsewhere, then all of them.
void expect_every_argument_refused(const Function& function, Device right) {
  const Stream stream = Stream::default_of(right);
  for (const Device wrong : {Device::cpu(), Device::cuda(0), Device::cuda(1)}) {
    if (wrong == right) continue;
    for (std::size_t i = 0; i < function.arguments.size(); ++i) {
      Views views(function.arguments.size(), view_on(right));
      views[i] = view_on(wrong);
      expect_refused(function.arguments[i], wrong, right, [&] { function.call(views, stream); });
    }
    const Views all(function.arguments.size(), view_on(wrong));
    expect_refused(function.arguments[0], wrong, right, [&] { function.call(all, stream); });
  }
}

class WrongDeviceTest : public testing::TestWithParam<Function> {};

TEST_P(WrongDeviceTest, IsNamedForEveryArgument) {
  for (const Device right : {Device::cpu(), Device::cuda(0), Device::cuda(1)}) {
    expect_every_argument_refused(GetParam(), right);
  }
}

PermuteOptions options_of(const TensorView& expert_map, const TensorView& counts) {
  PermuteOptions options;
  options.expert_map = expert_map;
  options.expert_num_tokens = counts;
  return options;
}

const std::vector<Function> kQuantizers{
    {{"x", "q", "scales", "static_scale"},
     [](const Views& v, Stream stream) {
       quantize(v[0], schemes::kFp8Block, v[1], v[2], stream, v[3]);
     }},
    {{"q", "scales", "y", "tensor_scale"},
     [](const Views& v, Stream stream) {
       dequantize(v[0], v[1], schemes::kFp8Block, v[2], stream, v[3]);
     }},
    {{"x", "counts", "q", "scales", "static_scale"},
     [](const Views& v, Stream stream) {
       quantize_batched(v[0], v[1], schemes::kFp8Block, v[2], v[3], stream, v[4]);
     }},
    {{"x", "q", "scales", "tensor_scale"},
     [](const Views& v, Stream stream) {
       silu_mul_quantize(v[0], schemes::kFp8Block, v[1], v[2], stream, ActivationScale::kScheme,
                         v[3]);
     }},
    {{"x", "counts", "q", "scales", "tensor_scale"},
     [](const Views& v, Stream stream) {
       silu_mul_quantize_batched(v[0], v[1], schemes::kFp8Block, v[2], v[3], stream,
                                 ActivationScale::kScheme, v[4]);
     }},
};

const std::vector<Function> kPermuters{
    {{"topk_ids", "expert_num_tokens", "expert_map", "num_errors"},
     [](const Views& v, Stream stream) {
       count_expert_num_tokens(v[0], v[1], v[2], stream, v[3]);
     }},
    {{"topk_ids", "expert_map", "local_ids", "num_errors"},
     [](const Views& v, Stream stream) { apply_expert_map(v[0], v[1], v[2], stream, v[3]); }},
    {{"expert_num_tokens", "sum", "num_errors"},
     [](const Views& v, Stream stream) {
       expert_num_tokens_round_up_and_sum(v[0], 4, v[1], stream, v[2]);
     }},
    {{"x", "scales", "topk_ids", "options.expert_map", "options.expert_num_tokens", "outputs.x",
      "outputs.scales", "outputs.m_indices", "outputs.inv_perm", "outputs.first_row",
      "outputs.expert_num_tokens", "outputs.num_rows", "num_errors"},
     [](const Views& v, Stream stream) {
       ep_scatter(v[0], v[1], v[2], options_of(v[3], v[4]),
                  {v[5], v[6], v[7], v[8], v[9], v[10], v[11]}, stream, {}, v[12]);
     }},
    {{"topk_ids", "options.expert_map", "options.expert_num_tokens", "outputs.m_indices",
      "outputs.inv_perm", "outputs.first_row", "outputs.expert_num_tokens", "outputs.num_rows",
      "num_errors"},
     [](const Views& v, Stream stream) {
       plan_permute(v[0], options_of(v[1], v[2]), {{}, {}, v[3], v[4], v[5], v[6], v[7]}, stream,
                    {}, v[8]);
     }},
    {{"expert_output", "topk_ids", "topk_weights", "inv_perm", "expert_map", "output",
      "num_errors"},
     [](const Views& v, Stream stream) {
       ep_gather(v[0], v[1], v[2], v[3], v[4], v[5], stream, v[6]);
     }},
    {{"expert_output", "topk_weights", "output", "num_errors"},
     [](const Views& v, Stream stream) {
       const TensorView inv_perm = view_on(stream.device());
       unpermute_and_reduce(v[0], inv_perm, v[1], v[2], stream, v[3]);
     }},
    {{"expert_output", "topk_weights", "topk_ids", "expert_map", "output", "num_errors"},
     [](const Views& v, Stream stream) {
       (void)weight_and_reduce(WeightAndReduce::contiguous(true), {v[0], v[1], v[2], v[3]}, v[4],
                               stream, {}, v[5]);
     }},
};

INSTANTIATE_TEST_SUITE_P(Quantizers, WrongDeviceTest, testing::ValuesIn(kQuantizers));
INSTANTIATE_TEST_SUITE_P(Permuters, WrongDeviceTest, testing::ValuesIn(kPermuters));

// Without a stream the host works.
TEST(WrongDeviceOfHostFunctionsTest, IsNamed) {
  for (const Device wrong : {Device::cuda(0), Device::cuda(1)}) {
    const TensorView gpu = view_on(wrong);
    const TensorView host = view_on(Device::cpu());
    const auto refused = [&](const char* argument, const std::function<void()>& call) {
      expect_refused(argument, wrong, Device::cpu(), call);
    };
    refused("expert_num_tokens", [&] { (void)expert_num_tokens_round_up_and_sum(gpu, 4); });
    refused("topk_ids", [&] { (void)plan_permute(gpu, 4); });
    refused("options.expert_map", [&] { (void)plan_permute(host, 4, options_of(gpu, {})); });
    refused("x", [&] { (void)permute(gpu, host, host, 4); });
    refused("topk_ids", [&] { (void)permute(host, host, gpu, 4); });
    refused("from", [&] { relayout_scales(gpu, host); });
    refused("to", [&] { relayout_scales(host, gpu); });
    refused("scales", [&] { (void)swizzle_scales(gpu); });
    refused("tiles", [&] { (void)unswizzle_scales(gpu, 4, 4); });
    refused("scales", [&] { pack_ue8m0(gpu, host); });
    refused("words", [&] { unpack_ue8m0(gpu, host); });
    refused("gate", [&] { router_logits(host, gpu, host); });
    refused("logits", [&] { select_experts({}, gpu, {}, host, host); });
    ExpertWeights weights{host, gpu, host, {}, {}, {}};
    refused("up", [&] { (void)make_exact_experts(weights, {}, Device::cuda(0)); });
    EXPECT_EQ(normalize_scales_shape(gpu).device(), wrong);
    EXPECT_EQ(normalize_batched_scales_shape(gpu, 2).device(), wrong);
  }
}

TEST(WrongDeviceOfCopiesTest, StreamsOfADeviceThatTakesNoPartAreNamed) {
  const TensorView host = view_on(Device::cpu());
  const TensorView gpu = view_on(Device::cuda(0));
  const auto refused = [](Device wrong, Device right, const TensorView& from, Device to) {
    expect_stream_refused(wrong, right,
                          [&] { (void)copy_to(from, to, Stream::default_of(wrong)); });
  };
  refused(Device::cpu(), Device::cuda(0), host, Device::cuda(0));
  refused(Device::cuda(1), Device::cuda(0), host, Device::cuda(0));
  refused(Device::cuda(0), Device::cpu(), host, Device::cpu());
  refused(Device::cpu(), Device::cuda(0), gpu, Device::cpu());
  refused(Device::cuda(1), Device::cuda(0), gpu, Device::cpu());
}

// ---- objects, each made on one device -----------------------------------------------------------

std::vector<Device> devices() {
  std::vector<Device> all{Device::cpu()};
  for (int i = 0; i < std::min(2, num_gpus()); ++i) all.push_back(Device::cuda(i));
  return all;
}

std::vector<Stream> streams_of_others(Device device) {
  std::vector<Stream> all;
  for (const Device other : {Device::cpu(), Device::cuda(0), Device::cuda(1)}) {
    if (other != device) all.push_back(Stream::default_of(other));
  }
  return all;
}

TEST(WrongDeviceOfExchangeTest, IsNamedForEveryArgument) {
  for (const Device device : devices()) {
    run_ranks(1, [&](const Group& group) {
      Exchange exchange(group, exchange_config(), {.device = device});
      const DispatchHandle none;  // devices are compared before handles
      expect_every_argument_refused(
          {{"tokens", "topk_ids", "topk_weights", "scales", "tensor_scale", "payload"},
           [&](const Views& v, Stream stream) {
             DispatchOptions options{.scales = v[3], .tensor_scale = v[4], .payloads = {v[5]}};
             (void)exchange.dispatch(v[0], v[1], v[2], stream, options);
           }},
          device);
      expect_every_argument_refused({{"tokens", "topk_ids", "topk_weights"},
                                     [&](const Views& v, Stream stream) {
                                       (void)exchange.dispatch_send(v[0], v[1], v[2], stream);
                                     }},
                                    device);
      expect_every_argument_refused({{"tokens", "topk_weights"},
                                     [&](const Views& v, Stream stream) {
                                       (void)exchange.dispatch_again(none, v[0], v[1], stream);
                                     }},
                                    device);
      expect_every_argument_refused(
          {{"rows", "output", "row_weights", "topk_weights", "shared", "returned_weights", "bias"},
           [&](const Views& v, Stream stream) {
             CombineOptions options;
             options.row_weights = v[2];
             options.topk_weights = v[3];
             options.shared = v[4];
             options.returned_weights = v[5];
             options.bias = {v[6]};
             exchange.combine(none, v[0], v[1], stream, options);
           }},
          device);
      expect_every_argument_refused(
          {{"rows"},
           [&](const Views& v, Stream stream) { exchange.combine_send(none, v[0], stream); }},
          device);
      expect_every_argument_refused(
          {{"output"},
           [&](const Views& v, Stream stream) { exchange.combine_receive(none, v[0], stream); }},
          device);
    });
  }
}

TEST(WrongDeviceOfExchangeTest, StreamsAreNamed) {
  for (const Device device : devices()) {
    run_ranks(1, [&](const Group& group) {
      Exchange exchange(group, exchange_config(), {.device = device});
      const DispatchHandle none;
      const TensorView x = view_on(device);
      for (const Stream stream : streams_of_others(device)) {
        const auto refused = [&](const std::function<void()>& call) {
          expect_stream_refused(stream.device(), device, call);
        };
        refused([&] { (void)exchange.dispatch(x, x, x, stream); });
        refused([&] { (void)exchange.dispatch_send(x, x, x, stream); });
        refused([&] { (void)exchange.dispatch_receive(none, stream); });
        refused([&] { (void)exchange.dispatch_again(none, x, x, stream); });
        refused([&] { (void)exchange.dispatch_again_send(none, x, x, stream); });
        refused([&] { (void)exchange.reopen(none, stream); });
        refused([&] { exchange.combine(none, x, x, stream); });
        refused([&] { exchange.combine_send(none, x, stream); });
        refused([&] { exchange.combine_receive(none, x, stream); });
      }
    });
  }
}

TEST(WrongDeviceOfExpertsTest, IsNamedForEveryArgument) {
  const Problem problem = batch_problem(16, 8, 6, {4, 0, 6});
  for (const Device device : devices()) {
    const auto experts = make_exact_experts(problem.weights(), {}, device);
    EXPECT_EQ(experts->device(), device);
    const auto call = [&](const Views& v, Stream stream) {
      const ExpertRows rows{v[0], v[1], schemes::kNone, v[2], v[3], v[4]};
      experts->apply(rows, v[5], {}, stream);
    };
    expect_every_argument_refused(
        {{"rows", "scales", "first_row", "num_rows", "tensor_scale", "output"}, call}, device);
    for (const Stream stream : streams_of_others(device)) {
      expect_stream_refused(stream.device(), device,
                            [&] { call(Views(6, view_on(device)), stream); });
    }
  }
}

/// What a rank gives to a class, on one device.
struct ClassInput {
  explicit ClassInput(Device device)
      : hidden(DType::kBF16, {4, 16}, device),
        ids(DType::kI64, {4, 2}, device),
        weights(DType::kF32, {4, 2}, device),
        output(DType::kBF16, {4, 16}, device) {}
  PrepareArguments arguments() const { return {hidden, ids, weights}; }

  Tensor hidden, ids, weights, output;
};

TEST(WrongDeviceOfClassesTest, IsNamedAndNothingIsSent) {
  for (const Device device : devices()) {
    for (const PrepareKind kind : {PrepareKind::kLocal, PrepareKind::kElasticDecode}) {
      run_ranks(1, [&](const Group& group) {
        PrepareFinalizeConfig config = class_config();
        config.global_to_physical = {1, 0, 3, 2};  // what is read before dispatch
        const auto object = make_prepare_finalize(kind, group, config, {.device = device});
        const ClassInput input(device);
        const Stream right = Stream::default_of(device);
        expect_every_argument_refused({{"hidden", "topk_ids", "topk_weights"},
                                       [&](const Views& v, Stream stream) {
                                         (void)object->prepare({v[0], v[1], v[2]}, stream);
                                       }},
                                      device);
        for (const Stream stream : streams_of_others(device)) {
          const auto refused = [&](const std::function<void()>& call) {
            expect_stream_refused(stream.device(), device, call);
          };
          refused([&] { (void)object->prepare(input.arguments(), stream); });
          refused([&] { (void)object->prepare_async(input.arguments(), stream, right); });
          refused([&] { (void)object->prepare_async(input.arguments(), right, stream); });
        }
        const Prepared prepared = object->prepare(input.arguments(), right);
        const TensorView& rows = prepared.experts.rows;
        for (const Stream stream : streams_of_others(device)) {
          const Device wrong = stream.device();
          FinalizeArguments results{input.output, rows, WeightAndReduce::no_op()};
          expect_stream_refused(wrong, device, [&] { object->finalize(results, stream); });
          expect_stream_refused(wrong, device,
                                [&] { (void)object->finalize_async(results, right, stream); });
          results.expert_output = moved_to(rows, rows.data(), wrong);
          expect_refused("expert_output", wrong, device, [&] { object->finalize(results, right); });
          results.expert_output = rows;
          results.output = moved_to(input.output, input.output.data(), wrong);
          expect_refused("output", wrong, device, [&] { object->finalize(results, right); });
        }
        object->finalize({input.output, rows, WeightAndReduce::no_op()}, right);
        if (device.is_cuda()) (void)Downloaded(input.output, right);  // waits
        object->check();
      });
    }
  }
}

TEST(WrongDeviceOfLayersTest, IsNamed) {
  for (const Device device : devices()) {
    run_ranks(1, [&](const Group& group) {
      const auto layer = make_layer(group, device, device);
      expect_every_argument_refused({{"hidden", "output"},
                                     [&](const Views& v, Stream stream) {
                                       const TensorView right = view_on(device);
                                       layer->apply({v[0], right, right}, v[1], stream);
                                     }},
                                    device);
      const ClassInput input(device);
      for (const Stream stream : streams_of_others(device)) {
        expect_stream_refused(stream.device(), device,
                              [&] { layer->apply(input.arguments(), input.output, stream); });
      }
    });
  }
}

TEST(WrongDeviceOfLayersTest, PartsOfTwoDevicesAreNamed) {
  REQUIRE_GPU();
  run_ranks(1, [&](const Group& group) {
    expect_error(Errc::kInvalidArgument,
                 "experts are on cuda:0, must be on cpu as prepare_finalize",
                 [&] { (void)make_layer(group, Device::cpu(), kGpu); });
    expect_error(Errc::kInvalidArgument,
                 "experts are on cpu, must be on cuda:0 as prepare_finalize",
                 [&] { (void)make_layer(group, kGpu, Device::cpu()); });
  });
}

}  // namespace
}  // namespace switchyard::test
