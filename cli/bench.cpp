// SPDX-License-Identifier: Apache-2.0

#include "bench.h"

#include <charconv>
#include <cstdio>
#include <optional>

#include <CLI/CLI.hpp>

#include "switchyard/scale_layout.h"

#include "bench_html.h"
#include "bench_report.h"
#include "bench_run.h"
#include "common_options.h"
#include "core/fail.h"
#include "core/settings.h"
#include "device/cuda_module.h"
#include "help.h"
#include "io/output_file.h"
#include "memory_file.h"
#include "plan/host_crossings.h"
#include "quant/scheme.h"
#include "start_ranks.h"
#include "transport/env.h"

namespace switchyard::cli {
namespace {

constexpr int kDefaultRanks = 2;
constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::int64_t kMaxSms = 4096;

// Parses a comma-separated list such as "1,8,32"; each number is from 1 to `most`.
std::vector<std::int64_t> parse_list(const char* option, const std::string& text,
                                     std::int64_t most) {
  std::vector<std::int64_t> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  for (;;) {
    std::int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    const bool is_over = next == end || *next == ',';
    require(error == std::errc{} && is_over && number >= 1 && number <= most,
            Errc::kInvalidArgument,
            "bench: {} is \"{}\", must be numbers from 1 to {} with commas between", option, text,
            most);
    numbers.push_back(number);
    if (next == end) return numbers;
    at = next + 1;
  }
}

bool is_baseline_file(const BenchOptions& options) {
  return !options.baseline.empty() && options.baseline != "nccl" && options.baseline != "mpi";
}

void check_device(const BenchOptions& options) {
  if (options.device == "cuda") {
    require(options.baseline != "mpi", Errc::kInvalidArgument,
            "bench: --baseline mpi with --device cuda, must be nccl or a file: it moves host "
            "memory");
    return;
  }
  require(!options.graph, Errc::kInvalidArgument,
          "bench: --graph with --device cpu, must be --device cuda: graphs are of a GPU");
  require(options.pdl, Errc::kInvalidArgument,
          "bench: --no-pdl with --device cpu, must be --device cuda: launches are of a GPU");
  require(options.sms.empty(), Errc::kInvalidArgument,
          "bench: --sms {} with --device cpu, must be --device cuda: SMs are of a GPU",
          options.sms);
  require(!options.cold_code && !options.skew, Errc::kInvalidArgument,
          "bench: --cold-code or --skew with --device cpu, must be --device cuda: they time "
          "kernels");
  require(!options.stages || options.op != "layer", Errc::kInvalidArgument,
          "bench: --stages with --op layer, must be dispatch, combine or pair");
  require(options.baseline != "nccl", Errc::kInvalidArgument,
          "bench: --baseline nccl with --device cpu, must be mpi or a file");
}

// Checks once, before any rank starts, what every rank would refuse.
void check_before(const BenchOptions& options, int num_ranks) {
  check_device(options);
  check_messages("bench", options.exact_messages, options.host_capacity, options.device);
  require_experts("bench", options.experts, options.device);
  bench_shapes(options, num_ranks);
  require_device("bench", options.device);
  check_json("bench", options.json);
  if (!options.html.empty()) check_output_path("bench: --html", options.html);
  if (is_baseline_file(options)) read_baseline(options.baseline);
  if (options.baseline != "mpi") return;
  require(options.op != "layer", Errc::kInvalidArgument,
          "bench: --baseline mpi with --op layer, must be dispatch, combine or pair");
  require(discover_ranks().source == "none" || !options.baseline_file.empty(),
          Errc::kInvalidArgument,
          "bench: --baseline mpi starts ranks of its own, must be run without a launcher");
}

int run_rank(const Group& group, const BenchOptions& options) {
  const bool speaks = options.json != "-";
  const BenchReport report = run_bench(group, options, [&](const std::string& text) {
    if (speaks) std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  });
  if (group.rank() != 0) return 0;
  publish(
      options.json, [] { return std::string(); }, [&] { return to_json(report); });
  if (!options.html.empty()) write_file(options.html, to_html(report));
  return report.is_ok() ? 0 : 1;
}

void add_shape_options(CLI::App* verb, BenchOptions& options) {
  verb->add_option("--workload", options.workload,
                   "sizes of a model: one of " + measure::workload_names() +
                       "; or a config.json or its folder")
      ->capture_default_str();
  verb->add_option("--tokens", options.tokens, "tokens per rank: N,N,...; one line for each")
      ->capture_default_str();
  verb->add_option("--max-tokens", options.max_tokens,
                   "tokens per rank that the exchange has room for; default: those of each line")
      ->check(CLI::Range(std::int64_t{1}, kMaxTokens));
  verb->add_option("--op", options.op, "what is timed; layer: a pair with experts in between")
      ->check(one_of<measure::Operation>())
      ->capture_default_str();
  verb->add_option("--layout", options.layout, "layout of received rows")
      ->check(one_of<Layout>())
      ->capture_default_str();
  verb->add_option("--scheme", options.scheme, "quantization of rows on the wire")
      ->check(
          one_of(scheme_names([](const QuantScheme& scheme) { return !scheme.is_simulated(); })))
      ->capture_default_str();
  verb->add_option("--scales", options.scales, "layout of received scales")
      ->check(one_of<ScaleLayout>())
      ->capture_default_str();
  verb->add_option("--returned", options.returned, "quantization of rows on the way back")
      ->check(one_of(scheme_names(&is_returnable)))
      ->capture_default_str();
  verb->add_flag("--codes", options.codes,
                 "tokens are given quantized already, with their scales, instead of as bf16");
  verb->add_option("--reduce", options.reduce, "where weighted sums happen")
      ->check(one_of<Reduce>())
      ->capture_default_str();
  add_experts(verb, options.experts, "of --op layer");
  verb->add_option("--micro-batches", options.micro_batches,
                   "of --op layer: parts of each rank's tokens that run overlapped")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  verb->add_option(
          "--shared-experts", options.shared_experts,
          "of --op layer: experts that every token visits on its own rank, between send and "
          "receive of combine")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  verb->add_option("--layers", options.layers, "consecutive calls or layers per iteration")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  verb->add_option("--routing", options.routing,
                   "uniform; zipf:A, expert i as 1/(i+1)^A; hot, all tokens to one expert; "
                   "limited:G:M, to M of G groups of experts; trace:FILE, topk_ids of a "
                   "safetensors file")
      ->capture_default_str();
  verb->add_option("--hosts", options.hosts,
                   "count the rows that would cross between this many hosts of equally many "
                   "ranks; ranks of several hosts count theirs")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  add_messages(verb, options.exact_messages, options.host_capacity);
}

void add_other_options(CLI::App* verb, BenchOptions& options) {
  verb->add_flag("--graph", options.graph, "cuda: replay CUDA graphs");
  verb->add_flag("!--no-pdl", options.pdl,
                 "cuda: launch no kernel before the one ahead has ended (no programmatic dependent "
                 "launch)");
  verb->add_option("--sms", options.sms,
                   "cuda: SMs that an operation may take; N,N,... for a chart");
  verb->add_flag("--cold-code", options.cold_code,
                 "cuda: also with 320 KiB of other code and 64 MiB of traffic before each call");
  verb->add_flag("--skew", options.skew, "cuda: also with ranks late by a random 0 to 50 us");
  verb->add_flag("--stages", options.stages,
                 "also show where the time goes; cpu: packing, waiting, placing, summing; cuda: "
                 "when CTAs reach each stage, in a build with SWITCHYARD_STAGES");
  verb->add_option("--runs", options.runs, "timed iterations of each line")
      ->check(CLI::Range(std::int64_t{30}, std::int64_t{1} << 20))
      ->capture_default_str();
  verb->add_option(
      "--baseline", options.baseline,
      "compare with mpi (MPI_Alltoallv of the same bytes, cpu), nccl (cuda), or a file "
      "of measured numbers such as bench/peers/*.json");
  add_seed(verb, options.seed, "of routing and weights");
  add_timeout(verb, options.timeout_ms);
  add_json(verb, options.json);
  verb->add_option("--html", options.html, "a page with charts into this file");
  verb->footer(
      "examples:\n"
      "  switchyard bench --ranks 2 --tokens 1,8,64,512 --html bench.html\n"
      "  switchyard bench --workload mixtral-8x7b --op dispatch --scheme none --baseline mpi\n"
      "  mpirun -n 8 --host node0:4,node1:4 switchyard bench --reduce per_host --tokens 128,4096\n"
      "  switchyard bench --device cuda --ranks 8 --graph --baseline nccl --tokens 1,8,32,128\n"
      "  switchyard bench --workload data/tiny-moe --op layer "
      "--routing trace:data/tiny-moe/routing.safetensors");
}

}  // namespace

std::vector<measure::BenchShape> bench_shapes(const BenchOptions& options, int num_ranks) {
  measure::BenchShape shape;
  shape.workload = measure::find_workload(options.workload);
  shape.routing = measure::RoutingPattern::parse(options.routing, shape.workload.num_experts,
                                                 shape.workload.num_topk);
  shape.num_ranks = num_ranks;
  even_host_map(num_ranks, options.hosts);  // throws what cannot be
  shape.operation = *enum_from_name<measure::Operation>(options.op);
  shape.layout = *layout_from_name(options.layout);
  shape.scheme = *scheme_from_name(options.scheme);
  shape.scale_layout = *scale_layout_from_name(options.scales);
  shape.returned = *scheme_from_name(options.returned);
  shape.gives_codes = options.codes;
  shape.reduce = *reduce_from_name(options.reduce);
  shape.experts = options.experts;
  shape.num_micro_batches = options.micro_batches;
  shape.num_shared_experts = options.shared_experts;
  shape.num_layers = options.layers;
  shape.num_runs = options.runs;
  shape.uses_graph = options.graph;
  shape.is_programmatic = options.pdl;
  shape.has_cold_code = options.cold_code;
  shape.has_skew = options.skew;
  shape.has_stages = options.stages;
  shape.has_exact_messages = options.exact_messages;
  shape.host_capacity = options.host_capacity;
  shape.seed = options.seed;
  std::vector<std::int64_t> budgets{0};
  if (!options.sms.empty()) budgets = parse_list("--sms", options.sms, kMaxSms);
  std::vector<measure::BenchShape> shapes;
  for (const std::int64_t budget : budgets) {
    for (const std::int64_t tokens : parse_list("--tokens", options.tokens, kMaxTokens)) {
      shape.num_sms = static_cast<int>(budget);
      shape.num_tokens = tokens;
      shape.max_tokens = options.max_tokens;
      check_shape(shape);
      shapes.push_back(shape);
    }
  }
  return shapes;
}

CLI::App* add_bench(CLI::App& app, BenchOptions& options) {
  CLI::App* verb = app.add_subcommand(
      "bench", "time dispatch and combine against this machine's limits and against others");
  // A hidden option that bench passes to its ranks. Its group must come before the help flag, or
  // the help text ends with an empty line.
  verb->set_help_flag();
  verb->add_option("--baseline-file", options.baseline_file)->group("");
  verb->set_help_flag("-h,--help", "Print this help message and exit");
  add_device(verb, options.device, "where the rows are");
  verb->add_option("--ranks", options.ranks, "number of ranks; default: the launcher's, else 2")
      ->check(CLI::Range(1, kMaxRanks));
  add_engine(verb, options.engine);
  add_shape_options(verb, options);
  add_other_options(verb, options);
  return verb;
}

int bench(const CLI::App& verb, const BenchOptions& given, char** argv) {
  BenchOptions options = given;
  // Only ranks that are threads need these settings; processes are measured with CUDA's defaults.
  const std::string engine =
      options.engine.empty() ? setting("SWITCHYARD_ENGINE").text : options.engine;
  if (options.device == "cuda" && engine == "local") prepare_for_shared_gpus();
  if (is_baseline_file(options)) options.baseline_file = options.baseline;
  std::optional<MemoryFile> measured;
  RankStart start;
  start.verb = "bench";
  start.num_ranks = options.ranks;
  start.default_ranks = kDefaultRanks;
  start.engine = options.engine;
  start.timeout_ms = options.timeout_ms;
  start.check = [&](int num_ranks) { check_before(options, num_ranks); };
  start.before = [&](int num_ranks) -> std::vector<std::string> {
    std::vector<std::string> more;
    if (options.baseline != "mpi") return more;
    measured.emplace("bench", to_json(measure_mpi(bench_shapes(options, num_ranks))));
    options.baseline_file = measured->path();
    more.push_back("--baseline-file=" + options.baseline_file);
    return more;
  };
  start.shared = shared_options(verb);
  start.body = [&](const Group& group) { return run_rank(group, options); };
  return start_ranks(start, argv);
}

}  // namespace switchyard::cli
