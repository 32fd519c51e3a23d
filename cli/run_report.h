// SPDX-License-Identifier: Apache-2.0
//
// run_report.h: gathers the ranks' results in one place and reports them as text, JSON or a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/group.h"
#include "switchyard/tensor.h"

#include "balance.h"
#include "run.h"
#include "run_oracle.h"
#include "run_rank.h"

namespace switchyard::cli {

struct Spread {
  double min = 0;
  double median = 0;
  double max = 0;
};

struct StageReport {
  std::string name;
  Spread us;
  std::int64_t wire_bytes = 0;  ///< summed over ranks; not counted on GPUs
};

/// Filled in on rank 0 only.
struct RunReport {
  RunOptions options;
  ModelConfig config;
  int layer = 0;
  std::string engine;
  std::vector<std::string> gpus;  ///< one per rank; empty on CPUs
  std::string heap;               ///< how GPUs share memory
  bool is_shared_gpu = false;     ///< several ranks use one GPU
  std::string input_source;
  std::string wire_scheme;            ///< format in which rows travel
  std::string reduce;                 ///< the reduce contract in effect
  std::optional<float> tensor_scale;  ///< of the input, for all ranks
  bool has_routing = false;           ///< the input has expert ids
  int num_ranks = 1;
  int num_hosts = 1;  ///< between which rows are counted
  std::int64_t num_tokens = 0;
  Tensor output;              ///< [T, H] bf16 or f32, input order
  bool rounds_input = false;  ///< tokens are f32 in the input and were rounded to bf16
  std::vector<StageReport> stages;
  std::vector<std::int64_t> tokens_per_rank;
  std::vector<std::int64_t> rows_per_rank;
  std::vector<std::int64_t> rows_per_expert;
  std::optional<Balance> balance;    ///< of ranks; absent where every rank has all experts
  std::int64_t host_crossings = 0;   ///< rows from host to host, summed over ranks
  std::int64_t window_bytes = 0;     ///< largest of any rank
  std::int64_t workspace_bytes = 0;  ///< largest of any rank
  std::optional<double> rel_l2;      ///< ||out - reference|| / ||reference||
  std::optional<double> max_abs;
  std::int64_t num_bad_weights = 0;  ///< NaN or infinite topk_weights of the input
  std::string reference_source;      ///< the file with the reference
  std::string other_layer;           ///< why its reference is not that of this layer; empty: it is
  OracleReport oracle;

  /// rel_l2 is information where the scheme is not none: then the reference is not quantized.
  bool is_judged() const { return rel_l2.has_value() && options.scheme == "none"; }
  double bound() const;  ///< on rel_l2
  bool is_ok() const;
  bool is_on_gpus() const { return options.device == "cuda"; }
  std::int64_t wire_bytes() const;  ///< summed over stages and ranks
};

/// Largest rel_l2 of a correct run without a scheme; with one, of experts that are not exact, to
/// the reference implementation.
double rel_l2_bound(const std::string& scheme);

/// Collective. The report is complete on rank 0 and empty on the others.
RunReport gather_report(const Group& group, const RunOptions& options, const RankResult& result);

std::string to_text(const RunReport& report);
std::string to_json(const RunReport& report);
void write_output(const std::string& path, const RunReport& report);

}  // namespace switchyard::cli
