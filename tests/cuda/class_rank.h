// SPDX-License-Identifier: Apache-2.0
//
// class_rank.h: one rank with the same prepare/finalize class on the CPU and on the GPU. Every call
// is made on both, and the outputs are compared bit for bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchyard/prepare_finalize.h"

#include "gpu_arena.h"

namespace switchyard::test {

struct ClassCase {
  std::string name;
  PrepareKind kind = PrepareKind::kLowLatency;
  int num_ranks = 2;
  PrepareFinalizeConfig config;
  std::vector<std::int64_t> num_tokens{37, 5, 0, 20};  ///< cycles over ranks and calls
  int num_calls = 4;
};

inline void PrintTo(const ClassCase& c, std::ostream* out) { *out << c.name; }

/// One rank's input of a call, on the host.
struct LayerInput {
  Tensor hidden;   ///< [T, H]
  Tensor ids;      ///< [T, K] i32 or i64, distinct within a token
  Tensor weights;  ///< [T, K]
};

struct LayerInputShape {
  std::int64_t num_tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t num_topk = 0;
  std::int64_t num_experts = 0;
  double none_share = 0;
  DType dtype = DType::kBF16;
  DType ids = DType::kI64;
};
LayerInput make_layer_input(const LayerInputShape& shape, std::uint64_t seed);

class ClassRank {
 public:
  /// Collective.
  ClassRank(const Group& group, const ClassCase& c);

  /// Collective: all calls of the case.
  void run();

 private:
  bool is_grouped() const;
  void run_call(int call);
  PrepareArguments on_gpu(const PrepareArguments& host);
  void expect_host_counts(const ExpertTokensMetadata& want, const ExpertTokensMetadata& got,
                          const std::optional<HostCounts>& host) const;
  void finalize(const Prepared& prepared, std::int64_t num_tokens, int call);
  Tensor results(const Prepared& prepared, WeightAndReduceKind policy, int call) const;

  const ClassCase& c_;
  int rank_;
  GpuArena arena_;
  std::unique_ptr<PrepareFinalize> cpu_;
  std::unique_ptr<PrepareFinalize> gpu_;
  int last_ = 0;               ///< micro-batch of the call
  std::int64_t num_rows_ = 0;  ///< of its receive buffer on the GPU
};

}  // namespace switchyard::test
