// SPDX-License-Identifier: Apache-2.0
//
// permute.cpp: the permute family on a GPU, compared with cudaMemcpyAsync of as many bytes (read
// and written together) in the same run: 4096 tokens of 7168, 8 of 256 experts. Permute reads a row
// once and writes it once per choice; unpermute reads each row once and writes the sum. A long copy
// before each timing empties L2 and hides the launches. Medians of 30; inputs and outputs rotate.
//
// usage: cuda_permute [FILE]      Prints a table; JSON lines go to FILE, or follow the table.

#include "switchyard/permute.h"

#include <algorithm>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "switchyard/weight_and_reduce.h"

#include "core/fail.h"
#include "core/random.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "run_bench.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTokens = 4096;
constexpr std::int64_t kHidden = 7168;
constexpr std::int64_t kTopk = 8;
constexpr std::int64_t kExperts = 256;
constexpr std::int64_t kChoices = kTokens * kTopk;
constexpr int kRuns = 30;
constexpr int kSets = 2;  // sets of inputs and outputs that alternate

// GPU memory whose bytes are all 1 at first.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(DType dtype, std::initializer_list<std::int64_t> shape)
      : memory_(dtype, shape, kGpu) {
    cuda::check_cuda(cudaMemset(memory_.data(), 1, view().num_bytes()), "cudaMemset");
  }
  const TensorView& view() const { return memory_.view(); }
  operator const TensorView&() const { return view(); }
  std::span<std::byte> span() const { return {memory_.as<std::byte>(), view().num_bytes()}; }
  void upload(const void* from) {
    cuda::check_cuda(cudaMemcpy(memory_.data(), from, view().num_bytes(), cudaMemcpyHostToDevice),
                     "upload");
  }

 private:
  Tensor memory_;
};

class Event {
 public:
  Event() { cuda::check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void record(const cuda::OwnedStream& stream) {
    cuda::check_cuda(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
  }
  double us_since(const Event& start) const {
    float ms = 0;
    cuda::check_cuda(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Row {
  std::string name;
  double bytes = 0;
  double us = 0;
  double copy_us = 0;
  double gb_per_second() const { return bytes / us * 1e-3; }
  double of_copy() const { return copy_us / us; }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  // `bytes` counts what call(set) reads and writes.
  void measure(const std::string& name, std::int64_t bytes, const std::function<void(int)>& call) {
    cuda::check_cuda(cudaDeviceSynchronize(), name.c_str());  // the tensors are filled
    const auto half = std::min(static_cast<std::size_t>(bytes / 2), kCopyBytes);
    std::vector<double> times, copy_times;
    for (int run = -3; run < kRuns; ++run) {
      const int set = (run + 4) % kSets;
      shield();
      begin_.record(stream_);
      call(set);
      end_.record(stream_);
      shield();
      copy_begin_.record(stream_);
      copy(half, set);
      copy_end_.record(stream_);
      cuda::check_cuda(cudaStreamSynchronize(stream_.get()), name.c_str());
      if (run < 0) continue;
      times.push_back(end_.us_since(begin_));
      copy_times.push_back(copy_end_.us_since(copy_begin_));
    }
    rows_.push_back({name, static_cast<double>(bytes), median(times), median(copy_times)});
    const Row& row = rows_.back();
    std::printf("%-34s %9.1f %9.1f %9.0f %9.1f %7.1f%%\n", row.name.c_str(), row.bytes * 1e-6,
                row.us, row.gb_per_second(), row.copy_us, row.of_copy() * 100);
    std::fflush(stdout);
  }

  void write_json(std::FILE* file, const char* device) const {
    for (const Row& row : rows_) {
      const std::string line = fmt::format(
          "{{\"bench\": \"cuda_permute\", \"device\": \"{}\", \"name\": \"{}\", \"bytes\": {:.0f}, "
          "\"us\": {:.2f}, \"gb_per_second\": {:.1f}, \"copy_us\": {:.2f}, \"of_copy\": {:.4f}}}\n",
          device, row.name, row.bytes, row.us, row.gb_per_second(), row.copy_us, row.of_copy());
      std::fputs(line.c_str(), file);
    }
  }

  Stream stream() const { return Stream::cuda(stream_.get(), kGpu.index); }

 private:
  static constexpr std::size_t kCopyBytes = std::size_t{1} << 30;

  void shield() { copy(std::size_t{512} << 20, 0); }
  void copy(std::size_t bytes, int set) {
    std::byte* to = set == 0 ? to_.data() : from_.data();
    std::byte* from = set == 0 ? from_.data() : to_.data();
    cuda::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()),
                     "copy");
  }

  cuda::OwnedStream stream_;
  cuda::DeviceBuffer from_{kCopyBytes};
  cuda::DeviceBuffer to_{kCopyBytes};
  Event begin_, end_, copy_begin_, copy_end_;
  std::vector<Row> rows_;
};

// Distinct random experts per token.
std::vector<std::int64_t> random_ids() {
  std::vector<std::int64_t> ids(kChoices);
  std::uint64_t counter = 0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t k = 0; k < kTopk;) {
      const auto id = static_cast<std::int64_t>(random_bits(1, counter++) % kExperts);
      const auto first = ids.begin() + t * kTopk;
      if (std::find(first, first + k, id) == first + k) first[k++] = id;
    }
  }
  return ids;
}

struct Routed {
  std::int64_t num_local;
  std::int64_t num_rows = compute_aligned_m(kTokens, kTopk, num_local);
  std::int64_t num_copies = 0;   ///< choices of this rank's experts
  std::int64_t num_sources = 0;  ///< tokens with such a choice
  DeviceTensor ids{DType::kI64, {kTokens, kTopk}};
  DeviceTensor map{DType::kI32, {kExperts}};
  DeviceTensor m_indices{DType::kI32, {num_rows}};
  DeviceTensor inv_perm{DType::kI32, {kTokens, kTopk}};
  DeviceTensor first_row{DType::kI64, {num_local}};
  DeviceTensor workspace{
      DType::kU8,
      {static_cast<std::int64_t>(ep_scatter_workspace_bytes(kTokens, kTopk, num_local))}};

  // The rank owns the first `owned` experts.
  explicit Routed(std::int64_t owned) : num_local(owned) {
    const std::vector<std::int64_t> values = random_ids();
    ids.upload(values.data());
    std::vector<std::int32_t> local(kExperts, -1);
    for (std::int64_t e = 0; e < owned; ++e) {
      local[static_cast<std::size_t>(e)] = static_cast<std::int32_t>(e);
    }
    map.upload(local.data());
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const auto first = values.begin() + t * kTopk;
      const auto kept = std::count_if(first, first + kTopk, [&](auto id) { return id < owned; });
      num_copies += kept;
      num_sources += kept > 0;
    }
  }

  ScatterOutputs outputs(const TensorView& x, const TensorView& scales) const {
    return {x, scales, m_indices, inv_perm, first_row};
  }
  std::int64_t plan_bytes() const { return kChoices * 12 + num_rows * 4; }
};

enum class Scales { kNone, kColumns, kPacked };

void scatter(Bench& bench, const std::string& name, const Routed& routed, DType dtype,
             Scales kind) {
  const bool packs = kind == Scales::kPacked;
  const std::int64_t num_scales = kHidden / 128;
  const std::int64_t num_words = packs ? num_scales / 4 : num_scales;
  DeviceTensor x[kSets], rows[kSets], scales[kSets], out_scales[kSets];
  TensorView columns[kSets];
  for (int set = 0; set < kSets; ++set) {
    x[set] = DeviceTensor(dtype, {kTokens, kHidden});
    rows[set] = DeviceTensor(dtype, {routed.num_rows, kHidden});
    if (kind == Scales::kNone) continue;
    const DType word = packs ? DType::kI32 : DType::kF32;
    scales[set] = DeviceTensor(packs ? DType::kE8M0 : DType::kF32, {kTokens, num_scales});
    out_scales[set] = DeviceTensor(word, {num_words, routed.num_rows});
    columns[set] = TensorView(out_scales[set].view().data(), word, {routed.num_rows, num_words},
                              {1, routed.num_rows}, kGpu);
  }
  const std::int64_t row_bytes = kHidden * bits_of(dtype) / 8;
  const std::int64_t scale_bytes =
      kind == Scales::kNone
          ? 0
          : routed.num_sources * num_scales * (packs ? 1 : 4) + routed.num_rows * num_words * 4;
  const std::int64_t bytes =
      (routed.num_sources + routed.num_copies) * row_bytes + scale_bytes + routed.plan_bytes();
  bench.measure(name, bytes, [&](int set) {
    ep_scatter(x[set], scales[set], routed.ids, {.expert_map = routed.map},
               routed.outputs(rows[set], columns[set]), bench.stream(), routed.workspace.span());
  });
}

void gather(Bench& bench, const std::string& name, const Routed& routed, DType dtype) {
  cuda::check_cuda(cudaDeviceSynchronize(), "gather");
  plan_permute(routed.ids, {.expert_map = routed.map}, routed.outputs({}, {}), bench.stream(),
               routed.workspace.span());
  DeviceTensor rows[kSets], output[kSets];
  const DeviceTensor weights(DType::kF32, {kTokens, kTopk});
  for (int set = 0; set < kSets; ++set) {
    rows[set] = DeviceTensor(dtype, {routed.num_rows, kHidden});
    output[set] = DeviceTensor(dtype, {kTokens, kHidden});
  }
  const std::int64_t bytes =
      (routed.num_copies + kTokens) * kHidden * bits_of(dtype) / 8 + kChoices * 8;
  bench.measure(name, bytes, [&](int set) {
    unpermute_and_reduce(rows[set], routed.inv_perm, weights, output[set], bench.stream());
  });
}

void policy(Bench& bench, const std::string& name, const Routed& routed,
            const WeightAndReduce& policy, bool is_weighed_already) {
  constexpr std::int64_t kCapacity = 256;
  constexpr std::int64_t kRowBytes = kHidden * 2;
  const bool is_batched = policy.kind == WeightAndReduceKind::kNaiveBatched;
  const bool is_no_op = policy.kind == WeightAndReduceKind::kNoOp;
  DeviceTensor rows[kSets], output[kSets];
  const DeviceTensor weights(DType::kF32, {kTokens, kTopk});
  const DeviceTensor workspace(
      DType::kU8, {static_cast<std::int64_t>(
                      weight_and_reduce_workspace_bytes(policy, kTokens, kTopk, kExperts))});
  for (int set = 0; set < kSets; ++set) {
    rows[set] = is_batched ? DeviceTensor(DType::kBF16, {kExperts, kCapacity, kHidden})
                : is_no_op ? DeviceTensor(DType::kBF16, {kTokens, kHidden})
                           : DeviceTensor(DType::kBF16, {kTokens, kTopk, kHidden});
    output[set] = DeviceTensor(DType::kBF16, {kTokens, kHidden});
  }
  const std::int64_t num_read = is_no_op ? kTokens : kChoices;
  const bool weighs_in_place = !is_batched && !is_no_op && !is_weighed_already;
  const std::int64_t bytes = (num_read + kTokens + (weighs_in_place ? kChoices : 0)) * kRowBytes;
  bench.measure(name, bytes, [&](int set) {
    WeightAndReduceArguments arguments;
    arguments.expert_output = rows[set];
    arguments.topk_weights = weights;
    arguments.topk_ids = routed.ids;
    arguments.apply_router_weight_on_input = is_weighed_already;
    (void)weight_and_reduce(policy, arguments, output[set], bench.stream(), workspace.span());
  });
}

void counts(Bench& bench, const Routed& routed) {
  const DeviceTensor num_tokens(DType::kI32, {kExperts});
  const DeviceTensor sum(DType::kI64, {1});
  bench.measure("plan_permute", routed.plan_bytes(), [&](int) {
    plan_permute(routed.ids, {.expert_map = routed.map}, routed.outputs({}, {}), bench.stream(),
                 routed.workspace.span());
  });
  bench.measure("count_expert_num_tokens", kChoices * 8,
                [&](int) { count_expert_num_tokens(routed.ids, num_tokens, {}, bench.stream()); });
  bench.measure("expert_num_tokens_round_up_and_sum", kExperts * 4, [&](int) {
    expert_num_tokens_round_up_and_sum(num_tokens, kDeepGemmAlignment, sum, bench.stream());
  });
}

void run(const char* json_path) {
  cudaDeviceProp properties{};
  cuda::check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s: %d tokens x %d, %d of %d experts; times are medians of %d\n", properties.name,
              static_cast<int>(kTokens), static_cast<int>(kHidden), static_cast<int>(kTopk),
              static_cast<int>(kExperts), kRuns);
  std::printf("%-34s %9s %9s %9s %9s %8s\n", "function", "MB", "us", "GB/s", "copy us", "of copy");
  Bench bench;
  const Routed all(kExperts);
  const Routed owned(kExperts / 8);
  scatter(bench, "ep_scatter bf16", all, DType::kBF16, Scales::kNone);
  scatter(bench, "ep_scatter e4m3 f32 scales", all, DType::kE4M3, Scales::kColumns);
  scatter(bench, "ep_scatter e4m3 packed scales", all, DType::kE4M3, Scales::kPacked);
  scatter(bench, "ep_scatter bf16 owns 1/8", owned, DType::kBF16, Scales::kNone);
  gather(bench, "unpermute_and_reduce bf16", all, DType::kBF16);
  gather(bench, "unpermute_and_reduce f16", all, DType::kF16);
  gather(bench, "unpermute_and_reduce f32", all, DType::kF32);
  gather(bench, "unpermute_and_reduce bf16 1/8", owned, DType::kBF16);
  policy(bench, "contiguous bf16 in place", all, WeightAndReduce::contiguous(), false);
  policy(bench, "contiguous bf16 weighed already", all, WeightAndReduce::contiguous(), true);
  policy(bench, "naive_batched bf16", all, WeightAndReduce::naive_batched(0), false);
  policy(bench, "no_op copy bf16", all, WeightAndReduce::no_op(), false);
  counts(bench, all);
  std::FILE* file = json_path == nullptr ? stdout : std::fopen(json_path, "w");
  if (file == nullptr) fail(Errc::kSystem, "cuda_permute: {} cannot be written", json_path);
  bench.write_json(file, properties.name);
  if (json_path != nullptr) std::fclose(file);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  return switchyard::run_bench("cuda_permute",
                               [&] { switchyard::run(argc > 1 ? argv[1] : nullptr); });
}
