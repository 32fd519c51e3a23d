// SPDX-License-Identifier: Apache-2.0

#include "run_input.h"

#include <charconv>
#include <cstring>
#include <filesystem>

#include "core/even_parts.h"
#include "core/fail.h"
#include "core/random.h"
#include "io/safetensors.h"
#include "quant/bf16.h"
#include "quant/rows.h"

namespace switchyard::cli {
namespace {

constexpr std::int64_t kDefaultRandomTokens = 1024;

void check_tensor(const SafetensorsFile& file, const char* name, const TensorView& view,
                  std::int64_t rows, std::int64_t cols, bool dtype_fits, const char* dtypes) {
  require(dtype_fits && view.num_dims() == 2 && view.shape(0) == rows && view.shape(1) == cols,
          Errc::kMalformedFile, "{}: {} is {}, must be {} [{}, {}]", file.path(), name,
          view.describe(), dtypes, rows, cols);
}

Tensor copy_rows_of(const TensorView& view, std::int64_t num_rows) {
  Tensor copy(view.dtype(), {num_rows, view.shape(1)});
  std::memcpy(copy.data(), view.data(), copy.view().num_bytes());
  return copy;
}

// tokens_in() has checked the tensor.
Tensor load_hidden(const SafetensorsFile& file, std::int64_t num_tokens) {
  const TensorView view = file.tensor("hidden_states");
  if (view.dtype() == DType::kBF16) return copy_rows_of(view, num_tokens);
  Tensor rounded(DType::kBF16, {num_tokens, view.shape(1)});
  f32_to_bf16(view.as<float>(), rounded.view().num_elements(), rounded.as<std::uint16_t>());
  return rounded;
}

void load_topk(RunInput& input, const SafetensorsFile& file, const ModelConfig& config,
               std::int64_t file_tokens) {
  const auto ids = file.find("topk_ids");
  if (!ids) return;
  const TensorView weights = file.tensor("topk_weights");
  check_tensor(file, "topk_ids", *ids, file_tokens, config.num_topk(), ids->dtype() == DType::kI32,
               "i32");
  check_tensor(file, "topk_weights", weights, file_tokens, config.num_topk(),
               weights.dtype() == DType::kF32, "f32");
  input.topk_ids = copy_rows_of(*ids, input.num_tokens());
  input.topk_weights = copy_rows_of(weights, input.num_tokens());
}

void load_reference(RunInput& input, const SafetensorsFile& file, const ModelConfig& config,
                    std::int64_t file_tokens) {
  const auto routed = file.find("routed_output");
  if (!routed) return;
  check_tensor(file, "routed_output", *routed, file_tokens, config.hidden,
               routed->dtype() == DType::kF32, "f32");
  input.reference = copy_rows_of(*routed, input.num_tokens());
  const auto shared = file.find("shared_output");
  if (!shared) return;
  check_tensor(file, "shared_output", *shared, file_tokens, config.hidden,
               shared->dtype() == DType::kF32, "f32");
  for (std::int64_t i = 0; i < input.reference.view().num_elements(); ++i) {
    input.reference.as<float>()[i] += shared->as<float>()[i];
  }
}

// Returns the number of tokens in a file and checks that its hidden_states fit the model.
std::int64_t tokens_in(const SafetensorsFile& file, const RunOptions& options,
                       const ModelConfig& config) {
  const TensorView hidden = file.tensor("hidden_states");
  const std::int64_t file_tokens = hidden.num_dims() == 2 ? hidden.shape(0) : 0;
  check_tensor(file, "hidden_states", hidden, file_tokens, config.hidden,
               hidden.dtype() == DType::kBF16 || hidden.dtype() == DType::kF32, "bf16 or f32");
  require(options.tokens.value_or(0) <= file_tokens, Errc::kInvalidArgument,
          "run: --tokens is {}, but {} has {}", options.tokens.value_or(0), file.path(),
          file_tokens);
  return file_tokens;
}

// Returns an empty string when the input is random.
std::string input_file(const RunOptions& options) {
  if (!options.input.empty()) return options.input;
  const std::string beside =
      (std::filesystem::path(options.model) / "activations.safetensors").string();
  return std::filesystem::exists(beside) ? beside : "";
}

RunInput load_file(const std::string& path, const RunOptions& options, const ModelConfig& config) {
  const auto file = SafetensorsFile::open(path);
  const std::int64_t file_tokens = tokens_in(*file, options, config);
  RunInput input;
  input.source = path;
  input.hidden = load_hidden(*file, options.tokens.value_or(file_tokens));
  load_topk(input, *file, config, file_tokens);
  load_reference(input, *file, config, file_tokens);
  return input;
}

RunInput make_random(const RunOptions& options, const ModelConfig& config) {
  RunInput input;
  input.source = fmt::format("random, seed {}", options.seed);
  const std::int64_t num_tokens = options.tokens.value_or(kDefaultRandomTokens);
  input.hidden = Tensor(DType::kBF16, {num_tokens, std::int64_t{config.hidden}});
  for (std::int64_t i = 0; i < input.hidden.view().num_elements(); ++i) {
    const double x = random_normal(options.seed, static_cast<std::uint64_t>(i));
    input.hidden.as<std::uint16_t>()[i] = bf16_from_f32(static_cast<float>(x));
  }
  return input;
}

std::vector<std::int64_t> parse_counts(const std::string& text) {
  std::vector<std::int64_t> counts;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  while (at <= end) {
    std::int64_t count = -1;
    const auto [next, error] = std::from_chars(at, end, count);
    require(error == std::errc{} && count >= 0 && (next == end || *next == ','),
            Errc::kInvalidArgument, "run: --split is \"{}\", want even, uneven or N,N,...", text);
    counts.push_back(count);
    if (next == end) break;
    at = next + 1;
  }
  return counts;
}

}  // namespace

RunInput load_run_input(const RunOptions& options, const ModelConfig& config) {
  const std::string path = input_file(options);
  return path.empty() ? make_random(options, config) : load_file(path, options, config);
}

std::int64_t count_tokens(const RunOptions& options, const ModelConfig& config) {
  const std::string path = input_file(options);
  if (path.empty()) return options.tokens.value_or(kDefaultRandomTokens);
  return options.tokens.value_or(tokens_in(*SafetensorsFile::open(path), options, config));
}

std::vector<std::int64_t> split_tokens(const std::string& split, std::int64_t num_tokens,
                                       int num_ranks) {
  std::vector<std::int64_t> first(static_cast<std::size_t>(num_ranks) + 1, 0);
  if (split == "even" || split == "uneven") {
    const std::int64_t shares = std::int64_t{num_ranks} * (num_ranks - 1) / 2;
    for (std::int64_t r = 1; r <= num_ranks; ++r) {
      const bool is_even = split == "even" || num_ranks == 1;
      first[static_cast<std::size_t>(r)] =
          is_even ? part_begin(num_tokens, num_ranks, r) : num_tokens * (r * (r - 1) / 2) / shares;
    }
    return first;
  }
  const std::vector<std::int64_t> counts = parse_counts(split);
  require(counts.size() == static_cast<std::size_t>(num_ranks), Errc::kInvalidArgument,
          "run: --split names {} ranks, but there are {}", counts.size(), num_ranks);
  for (std::size_t r = 0; r < counts.size(); ++r) first[r + 1] = first[r] + counts[r];
  require(first.back() == num_tokens, Errc::kInvalidArgument,
          "run: --split adds up to {} tokens, but the input has {}", first.back(), num_tokens);
  return first;
}

TensorView slice_rows(const TensorView& tensor, std::int64_t begin, std::int64_t end) {
  if (!tensor.has_value()) return {};
  const std::int64_t row_bytes = tensor.shape(1) * bits_of(tensor.dtype()) / 8;
  return TensorView(tensor.as<std::byte>() + begin * row_bytes, tensor.dtype(),
                    {end - begin, tensor.shape(1)}, tensor.device());
}

}  // namespace switchyard::cli
