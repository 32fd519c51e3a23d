// SPDX-License-Identifier: Apache-2.0

#include "run_input.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/bytes.h"
#include "core/even_parts.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/memory.h"
#include "core/random.h"
#include "io/safetensors.h"
#include "moe/prepare/prepare_recipe.h"
#include "progress.h"
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

// A safetensors file whose tensors fit the model and each other.
class InputFile {
 public:
  InputFile(const std::string& path, const RunOptions& options, const ModelConfig& config)
      : file_(SafetensorsFile::open(path)), num_experts_(config.num_experts()) {
    hidden_ = file_->tensor("hidden_states");
    require(hidden_.num_dims() == 2, Errc::kMalformedFile,
            "{}: hidden_states is {}, must be bf16 or f32 [T, {}]", path, hidden_, config.hidden);
    const std::int64_t rows = hidden_.shape(0);
    check_tensor(*file_, "hidden_states", hidden_, rows, config.hidden,
                 hidden_.dtype() == DType::kBF16 || hidden_.dtype() == DType::kF32, "bf16 or f32");
    num_tokens_ = options.tokens.value_or(rows);
    require(num_tokens_ <= rows, Errc::kInvalidArgument, "run: --tokens is {}, but {} has {}",
            num_tokens_, path, rows);
    find_topk(rows, config.num_topk());
    find(routed_, "routed_output", rows, config.hidden, DType::kF32);
    find(shared_, "shared_output", rows, config.hidden, DType::kF32);
  }

  std::int64_t num_tokens() const { return num_tokens_; }
  const TensorView& hidden() const { return hidden_; }
  const TensorView& topk_ids() const { return topk_ids_; }
  const TensorView& topk_weights() const { return topk_weights_; }
  const TensorView& routed() const { return routed_; }
  const TensorView& shared() const { return shared_; }

  // Of its metadata; empty: it names none.
  std::string layer() const {
    const auto& metadata = file_->metadata();
    const auto found = metadata.find("layer");
    return found == metadata.end() ? "" : found->second;
  }

  // Reads all of them, so it is done once, before ranks start.
  void check_ids(const RunOptions& options) const {
    if (!topk_ids_.has_value()) return;
    const std::int64_t num_topk = topk_ids_.shape(1);
    for (std::int64_t i = 0; i < num_tokens_ * num_topk; ++i) {
      const std::int32_t id = topk_ids_.as<std::int32_t>()[i];
      require(id >= -1 && id < num_experts_, Errc::kInvalidArgument,
              "run: topk_ids[{}, {}] of {} is {}, must be an expert from 0 to {}, or -1 for none",
              i / num_topk, i % num_topk, file_->path(), id, num_experts_ - 1);
    }
    const PrepareKind kind = *prepare_kind_from_name(options.prepare);
    if (recipe_of(kind).layout == Layout::kBatched) require_distinct(options.prepare, num_topk);
  }

 private:
  void require_distinct(const std::string& prepare, std::int64_t num_topk) const {
    for (std::int64_t t = 0; t < num_tokens_; ++t) {
      const std::int32_t* ids = topk_ids_.as<std::int32_t>() + t * num_topk;
      for (std::int64_t k = 1; k < num_topk; ++k) {
        require(ids[k] == -1 || std::find(ids, ids + k, ids[k]) == ids + k, Errc::kInvalidArgument,
                "run: topk_ids of {} name expert {} twice for token {}, --prepare {} has room for "
                "it once; use another class",
                file_->path(), ids[k], t, prepare);
      }
    }
  }

  void find(TensorView& view, const char* name, std::int64_t rows, std::int64_t cols,
            DType dtype) const {
    const auto found = file_->find(name);
    if (!found) return;
    check_tensor(*file_, name, *found, rows, cols, found->dtype() == dtype, name_of(dtype));
    view = *found;
  }

  void find_topk(std::int64_t rows, int num_topk) {
    find(topk_ids_, "topk_ids", rows, num_topk, DType::kI32);
    find(topk_weights_, "topk_weights", rows, num_topk, DType::kF32);
    require(topk_ids_.has_value() == topk_weights_.has_value(), Errc::kMalformedFile,
            "{}: {} is there, but {} is not; give both, or neither for the model's router",
            file_->path(), topk_ids_.has_value() ? "topk_ids" : "topk_weights",
            topk_ids_.has_value() ? "topk_weights" : "topk_ids");
  }

  std::shared_ptr<const SafetensorsFile> file_;
  int num_experts_;
  std::int64_t num_tokens_ = 0;
  TensorView hidden_;
  TensorView topk_ids_;
  TensorView topk_weights_;
  TensorView routed_;
  TensorView shared_;
};

Tensor copy_rows(const TensorView& view, std::int64_t begin, std::int64_t end) {
  if (!view.has_value()) return {};
  Tensor copy(view.dtype(), {end - begin, view.shape(1)});
  std::memcpy(copy.data(), slice_rows(view, begin, end).data(), copy.view().num_bytes());
  return copy;
}

// A copy of rows of bf16 or f32.
Tensor as_dtype(DType dtype, const TensorView& view) {
  if (view.dtype() == dtype) return copy_rows(view, 0, view.shape(0));
  Tensor rows(dtype, {view.shape(0), view.shape(1)});
  if (dtype == DType::kF32) {
    bf16_to_f32(view.as<std::uint16_t>(), view.num_elements(), rows.as<float>());
  } else {
    f32_to_bf16(view.as<float>(), view.num_elements(), rows.as<std::uint16_t>());
  }
  return rows;
}

// Returns an empty string when the input is random.
std::string input_file(const RunOptions& options) {
  if (!options.input.empty()) return options.input;
  const std::string beside =
      (std::filesystem::path(options.model) / "activations.safetensors").string();
  return std::filesystem::exists(beside) ? beside : "";
}

DType input_dtype(const RunOptions& options, const ModelConfig& config) {
  const std::string path = input_file(options);
  return path.empty() ? DType::kBF16 : InputFile(path, options, config).hidden().dtype();
}

bool keeps_f32(const RunOptions& options) {
  return options.scheme == "none" && options.device == "cpu";
}

RunInput load_file(const std::string& path, const RunOptions& options, const ModelConfig& config,
                   std::int64_t begin, std::int64_t end) {
  const InputFile file(path, options, config);
  RunInput input;
  input.source = path;
  const TensorView hidden = slice_rows(file.hidden(), begin, end);
  input.hidden = as_dtype(row_dtype(options, config), hidden);
  input.topk_ids = copy_rows(file.topk_ids(), begin, end);
  input.topk_weights = copy_rows(file.topk_weights(), begin, end);
  return input;
}

// Every stride-th token of a range. An element depends on its place in the whole input, so that any
// split gives the same tokens.
RunInput make_random(const RunOptions& options, const ModelConfig& config, std::int64_t begin,
                     std::int64_t end, std::int64_t stride = 1) {
  RunInput input;
  input.source = fmt::format("random, seed {}", options.seed);
  input.hidden = Tensor(DType::kBF16, {cdiv(end - begin, stride), std::int64_t{config.hidden}});
  Progress progress("run: random tokens", end - begin, begin == 0 && options.json != "-");
  for (std::int64_t t = begin; t < end; t += stride) {
    std::uint16_t* row = input.hidden.as<std::uint16_t>() + (t - begin) / stride * config.hidden;
    for (std::int64_t h = 0; h < config.hidden; ++h) {
      const auto i = static_cast<std::uint64_t>(t * config.hidden + h);
      row[h] = bf16_from_f32(static_cast<float>(random_normal(options.seed, i)));
    }
    progress.update(t - begin + 1);
  }
  input.hidden = as_dtype(row_dtype(options, config), input.hidden);
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
            Errc::kInvalidArgument, "run: --split is \"{}\", must be even, uneven or N,N,...",
            text);
    counts.push_back(count);
    if (next == end) break;
    at = next + 1;
  }
  return counts;
}

}  // namespace

DType result_dtype(const RunOptions& options, const ModelConfig& config) {
  return keeps_f32(options) ? input_dtype(options, config) : DType::kBF16;
}

DType row_dtype(const RunOptions& options, const ModelConfig& config) {
  const bool weighs_f32 = keeps_f32(options) && config.weighs_input;
  return weighs_f32 ? DType::kF32 : result_dtype(options, config);
}

bool rounds_input(const RunOptions& options, const ModelConfig& config) {
  return !keeps_f32(options) && input_dtype(options, config) == DType::kF32;
}

RunInput load_run_input(const RunOptions& options, const ModelConfig& config, std::int64_t begin,
                        std::int64_t end) {
  const std::string path = input_file(options);
  return path.empty() ? make_random(options, config, begin, end)
                      : load_file(path, options, config, begin, end);
}

Tensor load_run_sample(const RunOptions& options, const ModelConfig& config,
                       std::int64_t num_tokens, std::int64_t stride) {
  const std::string path = input_file(options);
  if (path.empty()) return make_random(options, config, 0, num_tokens, stride).hidden;
  const InputFile file(path, options, config);
  const TensorView all = slice_rows(file.hidden(), 0, num_tokens);
  Tensor sample(all.dtype(), {cdiv(num_tokens, stride), all.shape(1)});
  const auto row_bytes = static_cast<std::size_t>(all.shape(1) * bits_of(all.dtype()) / 8);
  for (std::int64_t i = 0; i < sample.shape(0); ++i) {
    std::memcpy(sample.as<std::byte>() + static_cast<std::size_t>(i) * row_bytes,
                slice_rows(all, i * stride, i * stride + 1).data(), row_bytes);
  }
  return as_dtype(row_dtype(options, config), sample);
}

RunReference load_run_reference(const RunOptions& options, const ModelConfig& config) {
  RunReference reference;
  const std::string path = input_file(options);
  if (path.empty()) return reference;
  const InputFile file(path, options, config);
  reference.source = path;
  reference.layer = file.layer();
  const std::int64_t num_tokens = file.num_tokens();
  const TensorView weights = slice_rows(file.topk_weights(), 0, num_tokens);
  for (std::int64_t i = 0; i < weights.num_elements(); ++i) {
    if (!std::isfinite(weights.as<float>()[i])) ++reference.num_bad_weights;
  }
  reference.output = copy_rows(file.routed(), 0, num_tokens);
  if (!file.routed().has_value() || !file.shared().has_value()) return reference;
  for (std::int64_t i = 0; i < num_tokens * config.hidden; ++i) {
    reference.output.as<float>()[i] += file.shared().as<float>()[i];
  }
  return reference;
}

std::int64_t count_tokens(const RunOptions& options, const ModelConfig& config) {
  const std::string path = input_file(options);
  if (path.empty()) return options.tokens.value_or(kDefaultRandomTokens);
  return InputFile(path, options, config).num_tokens();
}

void check_run_input(const RunOptions& options, const ModelConfig& config) {
  const std::string path = input_file(options);
  if (!path.empty()) return InputFile(path, options, config).check_ids(options);
  // Tokens and outputs of all ranks, bf16.
  const std::int64_t num_tokens = count_tokens(options, config);
  const auto bytes = static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(config.hidden);
  require_memory(fmt::format("run: holding {} tokens of {} elements and their output", num_tokens,
                             config.hidden),
                 4 * bytes);
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
  for (std::size_t r = 0; r < counts.size(); ++r) first[r + 1] = checked_add(first[r], counts[r]);
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
