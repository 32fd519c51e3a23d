// SPDX-License-Identifier: Apache-2.0
//
// Times dispatch and combine of one shape over engine shm (started by our launcher) or local. The
// time of a run is the slowest rank's, from a barrier to the return of the call. The experts are
// the identity: received rows are sent back if they are bf16.

#include <array>
#include <functional>

#include "engine/engine.h"
#include "exchange_case.h"
#include "measure/statistics.h"

namespace switchyard::bench {
namespace {

// Times one action on every rank and returns the slowest time to all ranks.
class Stopwatch {
 public:
  explicit Stopwatch(const Group& group)
      : group_(group), window_(group.engine().windows().make_window(sizeof(double))) {}

  double run(const std::function<void()>& action) {
    group_.barrier();
    const std::int64_t start = now_ns();
    action();
    const double us = static_cast<double>(now_ns() - start) * 1e-3;
    std::memcpy(window_->base(group_.rank()), &us, sizeof(us));
    group_.barrier();
    double slowest = 0;
    for (int r = 0; r < group_.size(); ++r) {
      double other = 0;
      std::memcpy(&other, window_->base(r), sizeof(other));
      slowest = std::max(slowest, other);
    }
    group_.barrier();
    return slowest;
  }

 private:
  Group group_;
  std::unique_ptr<Window> window_;
};

void print_bytes(const std::string& operation, const MovedBytes& bytes) {
  print_times((operation + "_read").c_str(), {static_cast<double>(bytes.read)});
  print_times((operation + "_written").c_str(), {static_cast<double>(bytes.written)});
}

void measure(const Group& group, const ExchangeCase& test) {
  const int rank = group.rank();
  const ExchangeConfig config = test.config();
  Exchange exchange(group, config);
  const Tensor tokens(DType::kBF16, {test.num_tokens, test.hidden});
  fill_tokens(tokens.as<std::uint16_t>(), tokens.view().num_elements());
  const std::vector<std::int32_t> id_values = random_ids(test, rank);
  const TensorView ids = TensorView::of(id_values.data(), {test.num_tokens, test.num_topk});
  const std::vector<float> weight_values(id_values.size(), 0.125f);
  const TensorView weights = TensorView::of(weight_values.data(), {test.num_tokens, test.num_topk});
  const Tensor output(DType::kBF16, {test.num_tokens, test.hidden});
  const bool is_bf16 = !config.scheme.is_quantized();

  Stopwatch stopwatch(group);
  std::vector<double> dispatch_us;
  std::vector<double> combine_us;
  constexpr int kWarmUps = 3;
  Tensor results;
  for (int run = -kWarmUps; run < test.num_runs; ++run) {
    Dispatched got;
    const double dispatch = stopwatch.run([&] { got = exchange.dispatch(tokens, ids, weights); });
    TensorView rows = got.experts.rows;
    if (!is_bf16) {
      if (!results.view().has_value()) {
        // Written once: rows that never were are one page of zeros, which caches hold.
        results = Tensor(DType::kBF16, {rows.shape(0), test.hidden});
        fill_tokens(results.as<std::uint16_t>(), results.view().num_elements());
      }
      rows = results;
    }
    const double combine = stopwatch.run([&] { exchange.combine(got.handle, rows, output); });
    if (run < 0) continue;
    dispatch_us.push_back(dispatch);
    combine_us.push_back(combine);
  }

  const std::int64_t row_bytes =
      test.hidden * bits_of(config.scheme.dtype) / 8 + num_scales(config.scheme, test.hidden) * 4;
  const PairBytes bytes = moved_bytes(test, rank, row_bytes);
  std::vector<double> dispatch_floor_us;
  std::vector<double> combine_floor_us;
  for (const bool is_dispatch : {true, false}) {
    MemoryFloor floor(is_dispatch ? bytes.dispatch : bytes.combine);
    std::array<std::vector<double>, 2> times;  // through the caches, past them
    for (const bool streaming : {false, true}) {
      for (int run = 0; run < test.num_runs; ++run) {
        times[streaming ? 1 : 0].push_back(stopwatch.run([&] { floor.run(streaming); }));
      }
    }
    const bool streaming = measure::median(times[1]) < measure::median(times[0]);
    (is_dispatch ? dispatch_floor_us : combine_floor_us) = times[streaming ? 1 : 0];
  }
  if (rank != 0) return;
  print_times("dispatch", dispatch_us);
  print_times("combine", combine_us);
  print_times("dispatch_floor", dispatch_floor_us);
  print_times("combine_floor", combine_floor_us);
  print_bytes("dispatch", bytes.dispatch);
  print_bytes("combine", bytes.combine);
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  using namespace switchyard;
  if (argc != 11) {
    std::fprintf(stderr, "exchange_job: %d arguments, want 10; it is started by exchange_bench\n",
                 argc - 1);
    return 2;
  }
  try {
    const bench::ExchangeCase test = bench::ExchangeCase::parse(argv);
    const auto body = [&](const Group& group) { bench::measure(group, test); };
    if (test.engine == "local") {
      run_local_ranks(test.num_ranks, body);
    } else {
      body(Group::from_environment({test.engine, 0}));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exchange_job: %s\n", error.what());
    return 1;
  }
  return 0;
}
