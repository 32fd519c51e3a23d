// SPDX-License-Identifier: Apache-2.0

#include "run.h"

#include <algorithm>
#include <filesystem>

#include <CLI/CLI.hpp>

#include "switchyard/group.h"

#include "common_options.h"
#include "core/bytes.h"
#include "core/fail.h"
#include "core/memory.h"
#include "device/cuda_module.h"
#include "help.h"
#include "io/checkpoint.h"
#include "io/model_config.h"
#include "io/moe_layer.h"
#include "io/output_file.h"
#include "io/safetensors.h"
#include "plan/host_crossings.h"
#include "quant/scheme.h"
#include "quantize_file.h"
#include "run_config.h"
#include "run_input.h"
#include "run_rank.h"
#include "run_report.h"
#include "start_ranks.h"
#include "transport/env.h"

namespace switchyard::cli {
namespace {

constexpr int kMaxLayer = 100'000;

// The work of one rank; rank 0 also reports and determines the exit code.
int run_rank(const Group& group, const RunOptions& options) {
  const RankResult result = run_layer(group, options);
  const RunReport report = gather_report(group, options, result);
  if (group.rank() != 0) return 0;
  if (!options.output.empty()) write_output(options.output, report);
  publish(
      options.json, [&] { return to_text(report); }, [&] { return to_json(report); });
  return report.is_ok() ? 0 : 1;
}

// The layer without its experts, which each rank reads for itself. quantize writes a single file;
// of several, those that the layer does not need may be missing.
void check_model(const RunOptions& options, const ModelConfig& config) {
  const Checkpoint checkpoint(options.model);
  if (const SafetensorsFile* file = checkpoint.single_file()) {
    require(!file->metadata().contains(kSchemeKey), Errc::kInvalidArgument,
            "run: {} was written by switchyard quantize; dequantize it first", file->path());
  }
  load_moe_layer(checkpoint, config, options.layer, std::span<const std::int32_t>());
}

// As the Hugging Face hub names models: owner/name.
bool is_hub_name(const std::string& model) {
  return std::ranges::count(model, '/') == 1 && model.find_first_of("/.~") != 0 &&
         !model.ends_with('/');
}

void check_model_folder(const std::string& model) {
  if (std::filesystem::is_directory(model)) return;
  require(!std::filesystem::exists(model), Errc::kInvalidArgument,
          "run: --model is the file {}, must be the folder with its config.json", model);
  fail(Errc::kInvalidArgument, "run: --model is {}, no such folder{}", model,
       is_hub_name(model) ? fmt::format("; a model of the Hugging Face hub must be downloaded "
                                        "first: hf download {} --local-dir DIR",
                                        model)
                          : "");
}

void check_places(const RunOptions& options) {
  check_json("run", options.json);
  if (!options.output.empty()) check_output_path("run: --output", options.output);
  if (options.dump.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.dump, error);
  require(!error, Errc::kInvalidArgument, "run: --dump is {}, which cannot be made: {}",
          options.dump, error.message());
}

std::vector<std::int64_t> first_tokens(const RunOptions& options, const ModelConfig& config,
                                       int num_ranks) {
  return split_tokens(options.split, count_tokens(options, config), num_ranks);
}

// Windows and received rows of ranks that this command starts, and which so share this host; the
// exchange would refuse them later.
void check_memory(const RunOptions& options, int num_ranks) {
  if (options.device != "cpu") return;
  const ModelConfig config = read_model_config(options.model);
  const std::vector<std::int64_t> first_token = first_tokens(options, config, num_ranks);
  std::int64_t max_tokens = 0;
  for (std::size_t r = 1; r < first_token.size(); ++r) {
    max_tokens = std::max(max_tokens, first_token[r] - first_token[r - 1]);
  }
  const RunConfig run_config = make_run_config(options, config, 1.0f, max_tokens);
  std::size_t bytes = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const ExchangeMemory memory =
        prepare_finalize_memory(run_config.kind, run_config.prepare, num_ranks, rank);
    bytes = checked_add(bytes, checked_add(memory.window_bytes, memory.receive_bytes));
  }
  require_memory(
      fmt::format("run: exchanging {} tokens per rank on {} ranks", max_tokens, num_ranks), bytes);
}

// Checks once, before any rank starts, what every rank would refuse.
void check_before(const RunOptions& options, int num_ranks) {
  check_run_options(options);
  even_host_map(num_ranks, options.hosts);  // throws what cannot be
  check_model_folder(options.model);
  const ModelConfig config = read_model_config(options.model);
  (void)first_tokens(options, config, num_ranks);  // throws what cannot be
  require_device("run", options.device);
  check_run_input(options, config);
  check_model(options, config);
  check_places(options);
}

}  // namespace

CLI::App* add_run(CLI::App& app, RunOptions& options) {
  CLI::App* verb = app.add_subcommand("run", "run one MoE layer of a model over N ranks");
  verb->add_option("--model", options.model, "folder with config.json and safetensors")->required();
  verb->add_option("--layer", options.layer, "layer number; default: the first MoE layer present")
      ->check(CLI::Range(0, kMaxLayer));
  verb->add_option("--input", options.input,
                   "safetensors with hidden_states, and topk_ids with topk_weights if wanted; "
                   "default: MODEL/activations.safetensors if there, else random");
  verb->add_option("--ranks", options.ranks, "number of ranks; default: the launcher's, else 1")
      ->check(CLI::Range(1, kMaxRanks));
  verb->add_option("--hosts", options.hosts,
                   "count the rows that would cross between this many hosts of equally many "
                   "ranks; ranks of several hosts count theirs")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  add_messages(verb, options.exact_messages, options.host_capacity);
  add_engine(verb, options.engine);
  add_device(verb, options.device,
             "where the layer runs; cuda: rank r on GPU r modulo their number");
  verb->add_option("--prepare", options.prepare, "prepare/finalize class")
      ->check(one_of<PrepareKind>())
      ->capture_default_str();
  verb->add_option("--scheme", options.scheme, "quantization of activations")
      ->check(one_of(scheme_names()))
      ->capture_default_str();
  verb->add_option("--reduce", options.reduce,
                   "where weighted sums happen; default: that of the class")
      ->check(one_of<Reduce>());
  verb->add_option("--global-scale", options.global_scale,
                   "nvfp4: a number, or auto: 2688 / largest magnitude of the input; default: "
                   "auto");
  verb->add_option("--static-scale", options.static_scale,
                   "fp8_tensor and int8_tensor: a number, or auto: from the largest magnitude of "
                   "the input; default: from the rows that arrive");
  verb->add_option("--intermediate-scale", options.intermediate_scale,
                   "the same between the two GEMMs, a number; default: 4 for nvfp4, else from "
                   "each expert's rows");
  verb->add_option("--alignment", options.alignment,
                   "elastic_prefill: experts start at multiples of this many rows")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  add_experts(verb, options.experts, "expert GEMM");
  verb->add_option("--split", options.split, "tokens of each rank: even, uneven or N,N,...")
      ->capture_default_str();
  verb->add_option("--tokens", options.tokens,
                   "tokens of all ranks; default: all of the input, or 1024")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
  add_seed(verb, options.seed, "of random inputs");
  verb->add_option("--repeat", options.repeat, "how often the layer runs")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  verb->add_option("--micro-batches", options.micro_batches,
                   "parts of each rank's tokens that run overlapped")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_timeout(verb, options.timeout_ms);
  verb->add_option(
      "--dump", options.dump,
      "folder for rank<r>.safetensors: what each rank's experts received and returned");
  verb->add_option("--output", options.output, "safetensors file for the layer's output");
  add_json(verb, options.json);
  return verb;
}

int run(const CLI::App& verb, const RunOptions& options, char** argv) {
  if (options.device == "cuda") prepare_for_shared_gpus();
  RankStart start;
  start.verb = "run";
  start.num_ranks = options.ranks;
  start.engine = options.engine;
  start.timeout_ms = options.timeout_ms;
  start.check = [&](int num_ranks) { check_before(options, num_ranks); };
  start.before = [&](int num_ranks) {
    check_memory(options, num_ranks);
    return std::vector<std::string>();
  };
  start.shared = shared_options(verb);
  start.body = [&](const Group& group) { return run_rank(group, options); };
  return start_ranks(start, argv);
}

}  // namespace switchyard::cli
