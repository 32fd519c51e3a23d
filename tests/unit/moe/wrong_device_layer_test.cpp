// SPDX-License-Identifier: Apache-2.0
//
// Exchange, prepare/finalize, experts and the modular kernel, each made on one device, refuse
// tensors and streams of another.

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "switchyard/prepare_finalize_factory.h"

#include "support/ranks.h"
#include "unit/moe/small_layer.h"
#include "unit/moe/wrong_device.h"

namespace switchyard::test {
namespace {

std::vector<Device> devices() {
  std::vector<Device> all{Device::cpu()};
  for (int i = 0; i < std::min(2, num_cuda_devices()); ++i) all.push_back(Device::cuda(i));
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

bool has_onednn() try {
  (void)make_onednn_experts(Problem(16, 8, {1}).weights());
  return true;
} catch (const Error& error) {
  EXPECT_EQ(error.code(), Errc::kNotAvailable) << error.what();
  return false;
}

TEST(WrongDeviceOfExpertsTest, WeightsLieOnTheHost) {
  for (const char* name : {"exact", "onednn"}) {
    if (std::string_view(name) == "onednn" && !has_onednn()) continue;
    expect_every_argument_refused({{"gate", "up", "down", "gate_bias", "up_bias", "down_bias"},
                                   [&](const Views& v, Stream) {
                                     ExpertWeights weights{v[0], v[1], v[2], {}, {}, {}};
                                     weights.gate_bias = v[3];
                                     weights.up_bias = v[4];
                                     weights.down_bias = v[5];
                                     (void)make_experts(name, weights);
                                   }},
                                  Device::cpu());
  }
  const Problem problem(16, 8, {1});
  const Device wrong = Device::cuda(0);
  expect_refused("intermediate_scale", wrong, Device::cpu(), [&] {
    (void)make_exact_experts(problem.weights(), {schemes::kFp8Tensor, {}, view_on(wrong)});
  });
}

TEST(WrongDeviceOfExpertsTest, IsNamedForEveryArgument) {
  const Problem problem(16, 8, {4, 0, 6});
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
        FinalizeArguments good{input.output, rows, WeightAndReduce::no_op()};
        const auto refuses_null = [&](const char* name, TensorView FinalizeArguments::*member) {
          expect_null_refused(name, device, DType::kBF16, [&](const TensorView& null) {
            FinalizeArguments given = good;
            given.*member = null;
            object->finalize(given, right);
          });
        };
        refuses_null("expert_output", &FinalizeArguments::expert_output);
        refuses_null("output", &FinalizeArguments::output);
        refuses_null("reduced", &FinalizeArguments::reduced);
        refuses_null("shared", &FinalizeArguments::shared);
        for (const Stream stream : streams_of_others(device)) {
          const Device wrong = stream.device();
          FinalizeArguments results{input.output, rows, WeightAndReduce::no_op()};
          expect_stream_refused(wrong, device, [&] { object->finalize(results, stream); });
          expect_stream_refused(wrong, device,
                                [&] { (void)object->finalize_async(results, right, stream); });
          results.expert_output = view_on(wrong);
          expect_refused("expert_output", wrong, device, [&] { object->finalize(results, right); });
          results.expert_output = rows;
          results.reduced = view_on(wrong);
          expect_refused("reduced", wrong, device, [&] { object->finalize(results, right); });
          results.reduced = {};
          results.shared = view_on(wrong);
          expect_refused("shared", wrong, device, [&] { object->finalize(results, right); });
          results.shared = {};
          results.output = view_on(wrong);
          expect_refused("output", wrong, device, [&] { object->finalize(results, right); });
        }
        object->finalize({input.output, rows, WeightAndReduce::no_op()}, right);
        (void)input.output.to(Device::cpu(), right);  // waits
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
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  const Device gpu = Device::cuda(0);
  run_ranks(1, [&](const Group& group) {
    expect_invalid("experts are on cuda:0, must be on cpu as prepare_finalize",
                   [&] { (void)make_layer(group, Device::cpu(), gpu); });
    expect_invalid("experts are on cpu, must be on cuda:0 as prepare_finalize",
                   [&] { (void)make_layer(group, gpu, Device::cpu()); });
  });
}

TEST(WrongDeviceOfLayersTest, TheGateOfASharedExpertIsNamed) {
  const Problem problem(16, 8, {1, 1, 1, 1});
  const Problem one(16, 8, {1});
  expect_every_argument_refused({{"shared gate"},
                                 [&](const Views& v, Stream) {
                                   ModularKernel(make_local(class_config()),
                                                 make_exact_experts(problem.weights()),
                                                 {make_exact_experts(one.weights()), v[0]});
                                 }},
                                Device::cpu());
}

// Of a build without CUDA, or a machine without a GPU.
TEST(WrongDeviceOfObjectsTest, ADeviceThatIsNotThereIsNotAvailable) {
  if (num_cuda_devices() > 0) GTEST_SKIP() << "this machine has a GPU";
  const Device device = Device::cuda(0);
  const auto refused = [](const std::function<void()>& call) {
    expect_error(Errc::kNotAvailable, "", call);
  };
  const Problem problem(16, 8, {1, 1, 1, 1});
  for (const char* name : {"exact", "cublas", "cutlass"}) {
    refused([&] { (void)make_experts(name, problem.weights(), {}, device); });
  }
  run_ranks(1, [&](const Group& group) {
    const ExchangeOptions options{.device = device};
    refused([&] { const Exchange exchange(group, exchange_config(), options); });
    refused([&] { (void)make_low_latency(group, class_config(), options); });
    refused([&] { (void)make_local(class_config(), options); });
  });
}

}  // namespace
}  // namespace switchyard::test
