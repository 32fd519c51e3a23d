// SPDX-License-Identifier: Apache-2.0
//
// How runs over several hosts begin, and what is counted between them, with a meter whose times are
// known. Needs no GPU.

#include "measure/cuda_series.h"

#include <gtest/gtest.h>

#include "known_meter.h"
#include "measure/call_bytes.h"

namespace switchyard::measure {
namespace {

BenchShape shape_of(std::vector<int> hosts) {
  BenchShape shape;
  shape.num_ranks = 4;
  shape.hosts = std::move(hosts);
  shape.num_runs = 3;
  return shape;
}

TEST(CudaSeriesTest, RunsWhoseHostWaitsAreNotHeld) {
  KnownMeter own(1, 9, 4);
  KnownMeter shared(1, 9, 3);
  BenchShape shape = shape_of({0, 0, 1, 1});
  EXPECT_EQ(run_start(own, shape), RunStart::kHeld);
  EXPECT_EQ(method_of(own, shape), "events");
  EXPECT_EQ(run_start(shared, shape), RunStart::kAtOnce);
  EXPECT_EQ(method_of(shared, shape), "launched");
  shape.has_exact_messages = true;
  EXPECT_EQ(run_start(own, shape), RunStart::kAtOnce);
  shape.uses_graph = true;
  EXPECT_EQ(run_start(own, shape), RunStart::kHeld);
  EXPECT_EQ(run_start(shared, shape), RunStart::kHeld);
  EXPECT_EQ(method_of(shared, shape), "graph");
  EXPECT_EQ(run_start(shared, shape_of({})), RunStart::kHeld);  // as ever on one host
}

TEST(CudaSeriesTest, HostMessagesAreThoseOfTheOperation) {
  const auto measured = [](Operation operation, int num_layers, int num_gpus) {
    KnownMeter meter(1, 9, num_gpus);
    BenchShape shape = shape_of({0, 1, 0, 1});
    shape.operation = operation;
    shape.num_layers = num_layers;
    ShapeResult result;
    measure_host_messages(meter, shape, {100, 40}, result);
    EXPECT_EQ(meter.start(), num_gpus < 4 ? RunStart::kAtOnce : RunStart::kHeld);
    return result;
  };
  constexpr double kRun = 3;  // of every run
  const ShapeResult pair = measured(Operation::kPair, 1, 4);
  EXPECT_EQ(pair.host_bytes, 140);
  EXPECT_EQ(pair.host_bytes_per_call->dispatch, 100);
  EXPECT_EQ(pair.host_us, std::vector<double>(3, kRun + 150));
  const ShapeResult layers = measured(Operation::kPair, 5, 2);
  EXPECT_EQ(layers.host_bytes, 5 * 140);
  EXPECT_EQ(layers.host_bytes_per_call->combine, 40);
  EXPECT_EQ(layers.host_us, std::vector<double>(3, kRun + 5 * 150));
  const ShapeResult dispatch = measured(Operation::kDispatch, 1, 4);
  EXPECT_EQ(dispatch.host_bytes, 100);
  EXPECT_EQ(dispatch.host_bytes_per_call->combine, 0);
  EXPECT_EQ(dispatch.host_us, std::vector<double>(3, kRun + 100));
  const ShapeResult combine = measured(Operation::kCombine, 1, 4);
  EXPECT_EQ(combine.host_bytes, 40);
  EXPECT_EQ(combine.host_us, std::vector<double>(3, kRun + 50));
}

TEST(CudaSeriesTest, MicroBatchesAndGraphsCountPerIteration) {
  KnownMeter meter(1, 9, 4);
  BenchShape shape = shape_of({0, 1, 0, 1});
  shape.operation = Operation::kLayer;
  shape.num_layers = 2;
  shape.num_micro_batches = 3;
  shape.uses_graph = true;
  ShapeResult result;
  measure_host_messages(meter, shape, {100, 40}, result);
  EXPECT_EQ(result.host_bytes, 2 * 3 * 140);
  const int num_iterations = iterations_per_run(shape);
  EXPECT_EQ(calls_per_run(shape), num_iterations * 6);
  EXPECT_NEAR(result.host_us.at(0), 6 * 150 + 3.0 / num_iterations, 1e-9);
}

// A graph is captured once and replayed; other calls say their bytes in every run.
TEST(CallBytesTest, AreTheMeanOfTimedRuns) {
  CallBytes bytes;
  EXPECT_EQ(bytes.per_call().dispatch, 0);
  bytes.begin();
  bytes.add({1000, 1000});  // a run that is not timed
  bytes.begin();
  bytes.add({10, 4});
  bytes.add({30, 8});
  bytes.end(2);
  bytes.end(2);  // a replay
  EXPECT_EQ(bytes.per_call().dispatch, 20);
  EXPECT_EQ(bytes.per_call().combine, 6);
}

}  // namespace
}  // namespace switchyard::measure
