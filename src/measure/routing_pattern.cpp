// SPDX-License-Identifier: Apache-2.0
//
// Skewed choices without repetition use exponential keys -log(u) / weight; the K smallest win
// (Efraimidis and Spirakis, 2006). This equals drawing one after another in proportion to the
// remaining weights.

#include "measure/routing_pattern.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "core/fail.h"
#include "core/random.h"
#include "io/safetensors.h"

namespace switchyard::measure {

struct RoutingTrace {
  std::vector<std::vector<std::int32_t>> layers;  ///< [N, K] each; N is at least 1
};

namespace {

// Gives each token of each rank in each iteration its own random stream.
std::uint64_t stream_of(std::uint64_t seed, std::int64_t iteration, int rank, std::int64_t token) {
  const std::uint64_t call = random_bits(seed, static_cast<std::uint64_t>(iteration));
  return random_bits(random_bits(call, static_cast<std::uint64_t>(rank)),
                     static_cast<std::uint64_t>(token));
}

double parse_exponent(const std::string& text, const std::string& number) {
  double exponent = 0;
  const char* end = number.data() + number.size();
  const auto [next, error] = std::from_chars(number.data(), end, exponent);
  require(error == std::errc{} && next == end && exponent >= 0 && exponent <= 10,
          Errc::kInvalidArgument,
          "bench: --routing is \"{}\", want zipf:A with a number A from 0 to 10", text);
  return exponent;
}

// Popularity follows a shuffled list; otherwise one rank would own all popular experts.
std::vector<double> zipf_weights(double exponent, std::int32_t num_experts) {
  std::vector<std::size_t> order(static_cast<std::size_t>(num_experts));
  std::iota(order.begin(), order.end(), std::size_t{0});
  constexpr std::uint64_t kShuffle = 0x5A1F;
  std::sort(order.begin(), order.end(), [](std::size_t a, std::size_t b) {
    return random_bits(kShuffle, a) < random_bits(kShuffle, b);
  });
  std::vector<double> weights(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    weights[order[i]] = std::pow(static_cast<double>(i + 1), -exponent);
  }
  return weights;
}

template <typename Id>
std::vector<std::int32_t> checked_ids(const SafetensorsFile& file, const std::string& name,
                                      const TensorView& view, std::int32_t num_experts) {
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(view.num_elements()));
  for (std::int64_t i = 0; i < view.num_elements(); ++i) {
    const Id id = view.as<Id>()[i];
    require(id >= -1 && id < num_experts, Errc::kMalformedFile,
            "{}: {}[{}, {}] is {}, but the workload has experts 0 to {}", file.path(), name,
            i / view.shape(1), i % view.shape(1), id, num_experts - 1);
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

std::vector<std::int32_t> read_layer(const SafetensorsFile& file, const std::string& name,
                                     std::int32_t num_experts, std::int32_t num_topk) {
  const TensorView view = file.tensor(name);
  const bool is_wide = view.dtype() == DType::kI64;
  require((is_wide || view.dtype() == DType::kI32) && view.num_dims() == 2 && view.shape(0) > 0 &&
              view.shape(1) == num_topk,
          Errc::kMalformedFile, "{}: {} is {}, want i32 or i64 [N, {}] for this workload",
          file.path(), name, view.describe(), num_topk);
  return is_wide ? checked_ids<std::int64_t>(file, name, view, num_experts)
                 : checked_ids<std::int32_t>(file, name, view, num_experts);
}

std::shared_ptr<const RoutingTrace> read_trace(const std::string& path, std::int32_t num_experts,
                                               std::int32_t num_topk) {
  const auto file = SafetensorsFile::open(path);
  auto trace = std::make_shared<RoutingTrace>();
  for (const std::string& name : file->names()) {
    if (name != "topk_ids" && !name.ends_with(".topk_ids")) continue;
    trace->layers.push_back(read_layer(*file, name, num_experts, num_topk));
  }
  require(!trace->layers.empty(), Errc::kMalformedFile,
          "{}: no tensor topk_ids or *.topk_ids, want one of [N, {}]", path, num_topk);
  return trace;
}

}  // namespace

RoutingPattern RoutingPattern::parse(const std::string& text, std::int32_t num_experts,
                                     std::int32_t num_topk) {
  RoutingPattern pattern;
  pattern.text_ = text;
  pattern.num_experts_ = num_experts;
  pattern.num_topk_ = num_topk;
  require(num_topk >= 1 && num_topk <= num_experts, Errc::kInvalidArgument,
          "bench: {} choices among {} experts, want from 1 to {}", num_topk, num_experts,
          num_experts);
  if (text == "uniform") return pattern;
  if (text == "hot") {
    pattern.kind_ = RoutingKind::kHot;
  } else if (text.rfind("zipf:", 0) == 0) {
    pattern.kind_ = RoutingKind::kZipf;
    pattern.weights_ = zipf_weights(parse_exponent(text, text.substr(5)), num_experts);
  } else {
    require(text.rfind("trace:", 0) == 0, Errc::kInvalidArgument,
            "bench: --routing is \"{}\", must be uniform, zipf:A, hot or trace:FILE", text);
    pattern.kind_ = RoutingKind::kTrace;
    pattern.trace_ = read_trace(text.substr(6), num_experts, num_topk);
  }
  return pattern;
}

std::vector<std::int32_t> RoutingPattern::ids(std::uint64_t seed, std::int64_t iteration, int rank,
                                              int num_ranks, std::int64_t num_tokens) const {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(num_tokens * num_topk_), -1);
  if (kind_ == RoutingKind::kTrace) {
    replay_trace(iteration, rank, num_ranks, num_tokens, ids);
    return ids;
  }
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    std::int32_t* choices = ids.data() + t * num_topk_;
    const std::uint64_t stream = stream_of(seed, iteration, rank, t);
    switch (kind_) {
      case RoutingKind::kUniform: draw_uniform(stream, choices); break;
      case RoutingKind::kZipf: draw_zipf(stream, choices); break;
      default: choices[0] = 0; break;
    }
  }
  return ids;
}

// Floyd's sampling draws exactly K numbers; the shuffle then makes all k equivalent.
void RoutingPattern::draw_uniform(std::uint64_t stream, std::int32_t* ids) const {
  std::uint64_t counter = 0;
  const auto below = [&](std::int32_t limit) {
    return static_cast<std::int32_t>(random_bits(stream, counter++) %
                                     static_cast<std::uint64_t>(limit));
  };
  for (std::int32_t k = 0; k < num_topk_; ++k) {
    const std::int32_t last = num_experts_ - num_topk_ + k;
    const std::int32_t drawn = below(last + 1);
    ids[k] = std::find(ids, ids + k, drawn) == ids + k ? drawn : last;
  }
  for (std::int32_t k = num_topk_; k > 1; --k) std::swap(ids[k - 1], ids[below(k)]);
}

void RoutingPattern::draw_zipf(std::uint64_t stream, std::int32_t* ids) const {
  std::vector<std::pair<double, std::int32_t>> keys;
  keys.reserve(weights_.size());
  for (std::size_t e = 0; e < weights_.size(); ++e) {
    const double u = 1.0 - random_uniform(stream, e);
    keys.emplace_back(-std::log(u) / weights_[e], static_cast<std::int32_t>(e));
  }
  std::partial_sort(keys.begin(), keys.begin() + num_topk_, keys.end());
  for (std::int32_t k = 0; k < num_topk_; ++k) ids[k] = keys[static_cast<std::size_t>(k)].second;
}

// Iterations rotate through the layers. Each turn continues with the layer's next rows and wraps
// around at its end.
void RoutingPattern::replay_trace(std::int64_t iteration, int rank, int num_ranks,
                                  std::int64_t num_tokens, std::vector<std::int32_t>& ids) const {
  const auto num_layers = static_cast<std::int64_t>(trace_->layers.size());
  const auto& layer = trace_->layers[static_cast<std::size_t>(iteration % num_layers)];
  const std::int64_t num_rows = static_cast<std::int64_t>(layer.size()) / num_topk_;
  const std::int64_t turn = iteration / num_layers;
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int64_t row = ((turn * num_ranks + rank) * num_tokens + t) % num_rows;
    std::copy_n(layer.data() + row * num_topk_, num_topk_, ids.data() + t * num_topk_);
  }
}

}  // namespace switchyard::measure
