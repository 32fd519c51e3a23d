// SPDX-License-Identifier: Apache-2.0

#include "support/synthetic_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "core/random.h"
#include "io/safetensors.h"
#include "support/synthetic_family.h"

namespace switchyard::test {
namespace {

constexpr double kClosest = 1e-4;  // scores that decide a choice differ by more than this

// Rounds `value` toward zero to a value that `dtype` can hold. Returns its bits.
std::uint32_t truncate_to(DType dtype, double value) {
  const auto wide = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &wide, sizeof bits);
  if (dtype == DType::kF32) return bits;
  if (dtype == DType::kBF16) return bits >> 16;
  const bool is_f16 = dtype == DType::kF16;
  const int fraction_bits = is_f16 ? 10 : 3;
  const int bias = is_f16 ? 15 : 7;
  const std::uint32_t sign = (bits >> 31) << (is_f16 ? 15 : 7);
  const int exponent = static_cast<int>((bits >> 23) & 255) - 127 + bias;
  if (exponent < 1) return sign;  // flushed to zero; other tests cover subnormals
  const std::uint32_t fraction = (bits & 0x7FFFFF) >> (23 - fraction_bits);
  return sign | static_cast<std::uint32_t>(exponent) << fraction_bits | fraction;
}

struct Matrix {
  int rows = 0, columns = 0;
  std::vector<double> values;
  double operator()(int r, int c) const {
    return values[static_cast<std::size_t>(r) * static_cast<std::size_t>(columns) +
                  static_cast<std::size_t>(c)];
  }
};

struct Stored {
  Tensor tensor;
  int shard;
};

/// Makes tensors one after another; the numbers depend only on the seed and the order.
class Maker {
 public:
  Maker(std::uint64_t seed, int num_shards) : seed_(seed), num_shards_(num_shards) {}

  Matrix matrix(const std::string& name, DType dtype, int rows, int columns, double spread,
                int shard) {
    Matrix result{rows, columns, {}};
    Tensor tensor(dtype, {rows, columns});
    const bool scaled = dtype == DType::kE4M3;
    // Quantized elements fill the range of e4m3; the block scale brings them down.
    const double element_spread = scaled ? 40.0 : spread;
    for (int i = 0; i < rows * columns; ++i) {
      const double value =
          std::clamp(random_normal(seed_, next_++) * element_spread, -400.0, 400.0);
      put(tensor, i, truncate_to(dtype, value));
      result.values.push_back(element_of(tensor, i));
    }
    if (scaled) scale_blocks(result, name, spread / element_spread, shard);
    keep(name, std::move(tensor), shard);
    return result;
  }

  std::map<std::string, Stored>& tensors() { return tensors_; }
  double normal() { return random_normal(seed_, next_++); }
  int num_shards() const { return num_shards_; }
  void keep(const std::string& name, Tensor tensor, int shard) {
    tensors_.emplace(name, Stored{std::move(tensor), shard % num_shards_});
  }

 private:
  static void put(Tensor& tensor, int index, std::uint32_t bits) {
    const auto bytes = static_cast<std::size_t>(bits_of(tensor.dtype()) / 8);
    std::memcpy(tensor.as<std::byte>() + static_cast<std::size_t>(index) * bytes, &bits, bytes);
  }

  void scale_blocks(Matrix& matrix, const std::string& name, double typical, int shard) {
    const int block_rows = (matrix.rows + 127) / 128;
    const int block_columns = (matrix.columns + 127) / 128;
    Tensor scales(DType::kF32, {block_rows, block_columns});
    for (int block = 0; block < block_rows * block_columns; ++block) {
      scales.as<float>()[block] =
          static_cast<float>(typical * (0.5 + random_uniform(seed_, next_++)));
    }
    for (int r = 0; r < matrix.rows; ++r) {
      for (int c = 0; c < matrix.columns; ++c) {
        const float scale = scales.as<float>()[r / 128 * block_columns + c / 128];
        matrix.values[static_cast<std::size_t>(r * matrix.columns + c)] *= double{scale};
      }
    }
    keep(name + "_scale_inv", std::move(scales), shard);
  }

  std::uint64_t seed_;
  std::uint64_t next_ = 0;
  int num_shards_;
  std::map<std::string, Stored> tensors_;
};

struct Mlp {
  Matrix gate, up, down;
};

Mlp make_mlp(Maker& maker, const std::string& module, const Family& f, int intermediate,
             DType dtype, bool routed, int shard) {
  const double in = 1.0 / std::sqrt(f.hidden);
  const double out = 1.0 / std::sqrt(intermediate);
  const std::string gate = routed ? f.gate : "gate_proj";
  const std::string up = routed ? f.up : "up_proj";
  const std::string down = routed ? f.down : "down_proj";
  Mlp mlp;
  mlp.gate =
      maker.matrix(module + "." + gate + ".weight", dtype, intermediate, f.hidden, in, shard);
  mlp.up = maker.matrix(module + "." + up + ".weight", dtype, intermediate, f.hidden, in, shard);
  mlp.down =
      maker.matrix(module + "." + down + ".weight", dtype, f.hidden, intermediate, out, shard);
  return mlp;
}

double dot(const Matrix& matrix, int row, const std::vector<double>& x) {
  double sum = 0;
  for (int c = 0; c < matrix.columns; ++c) sum += matrix(row, c) * x[static_cast<std::size_t>(c)];
  return sum;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

std::vector<double> apply_mlp(const Mlp& mlp, const std::vector<double>& x) {
  std::vector<double> inner;
  for (int i = 0; i < mlp.gate.rows; ++i) {
    const double gate = dot(mlp.gate, i, x);
    inner.push_back(gate * sigmoid(gate) * dot(mlp.up, i, x));
  }
  std::vector<double> y;
  for (int h = 0; h < mlp.down.rows; ++h) y.push_back(dot(mlp.down, h, inner));
  return y;
}

struct Choice {
  std::vector<int> ids;
  std::vector<double> weights;
  bool clear = true;  // no two deciding scores are close
};

// Returns the indices of `scores`, best first; clears `clear` when neighbors within the first
// `deciding` places are close.
std::vector<int> ranking(const std::vector<double>& scores, int deciding, bool& clear) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](int i) { return scores[static_cast<std::size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score(a) > score(b); });
  for (int place = 0; place < deciding && place + 1 < static_cast<int>(order.size()); ++place) {
    const auto at = static_cast<std::size_t>(place);
    clear = clear && score(order[at]) - score(order[at + 1]) > kClosest;
  }
  return order;
}

void drop_weak_groups(const Family& f, std::vector<double>& for_choice, bool& clear) {
  const int size = f.num_experts / f.num_groups;
  std::vector<double> group_scores;
  for (int group = 0; group < f.num_groups; ++group) {
    std::vector<double> members(for_choice.begin() + group * size,
                                for_choice.begin() + (group + 1) * size);
    std::sort(members.rbegin(), members.rend());
    group_scores.push_back(f.groups == Groups::kBest ? members[0] : members[0] + members[1]);
  }
  const std::vector<int> order = ranking(group_scores, f.topk_groups, clear);
  for (std::size_t place = static_cast<std::size_t>(f.topk_groups); place < order.size(); ++place) {
    for (int e = order[place] * size; e < (order[place] + 1) * size; ++e) {
      for_choice[static_cast<std::size_t>(e)] = -std::numeric_limits<double>::infinity();
    }
  }
}

Choice route(const Family& f, const std::vector<double>& logits, const std::vector<double>& bias) {
  std::vector<double> scores;
  const double highest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double logit : logits) total += std::exp(logit - highest);
  for (const double logit : logits) {
    scores.push_back(f.sigmoid ? sigmoid(logit) : std::exp(logit - highest) / total);
  }
  std::vector<double> for_choice = scores;
  for (std::size_t e = 0; e < bias.size(); ++e) for_choice[e] += bias[e];
  Choice choice;
  if (f.groups != Groups::kNone) drop_weak_groups(f, for_choice, choice.clear);
  choice.ids = ranking(for_choice, f.num_topk, choice.clear);
  choice.ids.resize(static_cast<std::size_t>(f.num_topk));
  double sum = 0;
  for (const int id : choice.ids) sum += scores[static_cast<std::size_t>(id)];
  for (const int id : choice.ids) {
    choice.weights.push_back(scores[static_cast<std::size_t>(id)] / (f.norm ? sum : 1.0) * f.scale);
  }
  return choice;
}

struct Layer {
  Matrix router, shared_gate;
  std::vector<double> bias;
  std::vector<Mlp> experts;
  Mlp shared;
};

Layer make_layer(Maker& maker, const Family& f, DType dtype) {
  Layer layer;
  const std::string prefix = fmt::format("model.layers.{}.{}.", f.layer, f.block);
  // Plain modules are never quantized.
  const DType plain = dtype == DType::kE4M3 ? DType::kBF16 : dtype;
  layer.router = maker.matrix(prefix + "gate.weight", plain, f.num_experts, f.hidden,
                              1.5 / std::sqrt(f.hidden), 0);
  if (f.bias) {
    Tensor bias(DType::kF32, {f.num_experts});
    for (int e = 0; e < f.num_experts; ++e) {
      bias.as<float>()[e] = static_cast<float>(0.2 * maker.normal());
      layer.bias.push_back(double{bias.as<float>()[e]});
    }
    maker.keep(prefix + "gate.e_score_correction_bias", std::move(bias), 0);
  }
  for (int e = 0; e < f.num_experts; ++e) {
    layer.experts.push_back(make_mlp(maker, fmt::format("{}experts.{}", prefix, e), f,
                                     f.intermediate, dtype, true,
                                     e * maker.num_shards() / f.num_experts));
  }
  if (f.shared > 0) {
    layer.shared = make_mlp(maker, prefix + f.shared_block, f, f.shared, dtype, false, 0);
  }
  if (f.gated) {
    layer.shared_gate = maker.matrix(prefix + "shared_expert_gate.weight", plain, 1, f.hidden,
                                     1.0 / std::sqrt(f.hidden), 0);
  }
  if (f.has_dense_layer) make_mlp(maker, "model.layers.0.mlp", f, 16, plain, false, 0);
  return layer;
}

std::vector<std::uint16_t> make_token(Maker& maker, const Family& f, std::vector<double>& x) {
  std::vector<std::uint16_t> bits;
  x.clear();
  for (int h = 0; h < f.hidden; ++h) {
    bits.push_back(static_cast<std::uint16_t>(truncate_to(DType::kBF16, maker.normal())));
    x.push_back(element_of(TensorView(&bits.back(), DType::kBF16, {1}), 0));
  }
  return bits;
}

void add_token(Maker& maker, const Family& f, const Layer& layer, SyntheticCheckpoint& out) {
  std::vector<double> x;
  std::vector<std::uint16_t> bits;
  Choice choice;
  do {
    bits = make_token(maker, f, x);
    std::vector<double> logits;
    for (int e = 0; e < f.num_experts; ++e) logits.push_back(dot(layer.router, e, x));
    choice = route(f, logits, layer.bias);
  } while (!choice.clear);

  std::vector<double> routed(static_cast<std::size_t>(f.hidden), 0.0);
  for (std::size_t k = 0; k < choice.ids.size(); ++k) {
    const auto y = apply_mlp(layer.experts[static_cast<std::size_t>(choice.ids[k])], x);
    for (std::size_t h = 0; h < y.size(); ++h) routed[h] += choice.weights[k] * y[h];
  }
  std::vector<double> shared(static_cast<std::size_t>(f.hidden), 0.0);
  if (f.shared > 0) shared = apply_mlp(layer.shared, x);
  if (f.gated) {
    const double factor = sigmoid(dot(layer.shared_gate, 0, x));
    for (double& value : shared) value *= factor;
  }
  out.hidden_states.insert(out.hidden_states.end(), bits.begin(), bits.end());
  out.topk_ids.insert(out.topk_ids.end(), choice.ids.begin(), choice.ids.end());
  out.topk_weights.insert(out.topk_weights.end(), choice.weights.begin(), choice.weights.end());
  out.routed_output.insert(out.routed_output.end(), routed.begin(), routed.end());
  out.shared_output.insert(out.shared_output.end(), shared.begin(), shared.end());
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  if (!out.flush()) throw std::runtime_error("write " + path);
}

void write_weights(const std::string& folder, Maker& maker) {
  const int num_shards = maker.num_shards();
  std::vector<std::vector<NamedTensor>> shards(static_cast<std::size_t>(num_shards));
  std::string weight_map;
  const auto file_name = [&](int shard) {
    return num_shards == 1 ? std::string("model.safetensors")
                           : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, num_shards);
  };
  for (const auto& [name, stored] : maker.tensors()) {
    shards[static_cast<std::size_t>(stored.shard)].push_back({name, stored.tensor.view()});
    weight_map += fmt::format("{}\n  \"{}\": \"{}\"", weight_map.empty() ? "" : ",", name,
                              file_name(stored.shard));
  }
  for (int shard = 0; shard < num_shards; ++shard) {
    write_safetensors(folder + "/" + file_name(shard), shards[static_cast<std::size_t>(shard)],
                      {{"format", "pt"}});
  }
  if (num_shards > 1) {
    write_text(folder + "/model.safetensors.index.json",
               fmt::format("{{\"metadata\": {{}}, \"weight_map\": {{{}\n}}}}\n", weight_map));
  }
}

void write_config(const std::string& folder, const Family& f, DType dtype) {
  const std::string quantization =
      dtype != DType::kE4M3
          ? ""
          : ",\n \"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", "
            "\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}";
  write_text(folder + "/config.json",
             fmt::format("{{\n {},\n \"hidden_size\": {}, \"num_experts_per_tok\": {}, "
                         "\"num_hidden_layers\": {}, \"hidden_act\": \"silu\"{}\n}}\n",
                         f.config, f.hidden, f.num_topk, f.num_layers, quantization));
}

}  // namespace

double element_of(const TensorView& tensor, std::int64_t index) {
  if (tensor.dtype() == DType::kF32) return double{tensor.as<const float>()[index]};
  if (tensor.dtype() == DType::kBF16) {
    const std::uint32_t bits = std::uint32_t{tensor.as<const std::uint16_t>()[index]} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return double{value};
  }
  const bool is_f16 = tensor.dtype() == DType::kF16;
  if (!is_f16 && tensor.dtype() != DType::kE4M3) throw std::logic_error("element_of: dtype");
  const int bits = is_f16 ? tensor.as<const std::uint16_t>()[index]
                          : int{tensor.as<const std::uint8_t>()[index]};
  const int fraction_bits = is_f16 ? 10 : 3;
  const int width = is_f16 ? 16 : 8;
  const int bias = is_f16 ? 15 : 7;
  const int exponent = (bits >> fraction_bits) & ((1 << (width - 1 - fraction_bits)) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int whole = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  const double magnitude = std::ldexp(whole, std::max(exponent, 1) - bias - fraction_bits);
  return (bits >> (width - 1)) != 0 ? -magnitude : magnitude;
}

SyntheticCheckpoint write_synthetic_checkpoint(const std::string& folder,
                                               const SyntheticOptions& options) {
  const Family f = family_of(options.family, options.norm_topk_prob);
  Maker maker(options.seed, options.num_shards);
  const Layer layer = make_layer(maker, f, options.dtype);
  SyntheticCheckpoint out;
  out.folder = folder;
  out.layer = f.layer;
  out.hidden = f.hidden;
  out.num_experts = f.num_experts;
  out.num_topk = f.num_topk;
  out.num_tokens = options.num_tokens;
  for (int t = 0; t < options.num_tokens; ++t) add_token(maker, f, layer, out);
  write_weights(folder, maker);
  write_config(folder, f, options.dtype);
  return out;
}

}  // namespace switchyard::test
