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
#include <tuple>
#include <utility>

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
          "--routing is \"{}\", must be zipf:A with a number A from 0 to 10", text);
  return exponent;
}

// Reads G and M of "limited:G:M".
std::pair<std::int32_t, std::int32_t> parse_groups(const std::string& text,
                                                   std::int32_t num_experts,
                                                   std::int32_t num_topk) {
  const char* const end = text.data() + text.size();
  std::int32_t num_groups = 0;
  std::int32_t topk_groups = 0;
  const auto first = std::from_chars(text.data() + std::string("limited:").size(), end, num_groups);
  const bool has_two = first.ec == std::errc{} && first.ptr != end && *first.ptr == ':';
  const auto second = std::from_chars(has_two ? first.ptr + 1 : end, end, topk_groups);
  require(has_two && second.ec == std::errc{} && second.ptr == end && num_groups >= 1 &&
              num_experts % num_groups == 0 && topk_groups >= 1 && topk_groups <= num_groups &&
              num_experts / num_groups * topk_groups >= num_topk,
          Errc::kInvalidArgument,
          "--routing is \"{}\", must be limited:G:M with a divisor G of {} experts and 1 to G "
          "groups M, with {} experts or more",
          text, num_experts, num_topk);
  return {num_groups, topk_groups};
}

// Floyd's sampling draws exactly `count` numbers below `limit`; the shuffle then makes all places
// equivalent. `counter` numbers the draws of the stream.
void sample(std::uint64_t stream, std::uint64_t& counter, std::int32_t limit, std::int32_t count,
            std::int32_t* out) {
  const auto below = [&](std::int32_t bound) {
    return static_cast<std::int32_t>(random_bits(stream, counter++) %
                                     static_cast<std::uint64_t>(bound));
  };
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t last = limit - count + i;
    const std::int32_t drawn = below(last + 1);
    out[i] = std::find(out, out + i, drawn) == out + i ? drawn : last;
  }
  for (std::int32_t i = count; i > 1; --i) std::swap(out[i - 1], out[below(i)]);
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
          Errc::kMalformedFile, "{}: {} is {}, must be i32 or i64 [N, {}] for this workload",
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
          "{}: no tensor topk_ids or *.topk_ids, there must be one of [N, {}]", path, num_topk);
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
          "{} choices among {} experts, must be from 1 to {}", num_topk, num_experts, num_experts);
  if (text == "uniform") return pattern;
  if (text == "hot") {
    pattern.kind_ = RoutingKind::kHot;
  } else if (text.rfind("zipf:", 0) == 0) {
    pattern.kind_ = RoutingKind::kZipf;
    pattern.weights_ = zipf_weights(parse_exponent(text, text.substr(5)), num_experts);
  } else if (text.rfind("limited:", 0) == 0) {
    pattern.kind_ = RoutingKind::kLimited;
    std::tie(pattern.num_groups_, pattern.topk_groups_) = parse_groups(text, num_experts, num_topk);
  } else {
    require(text.rfind("trace:", 0) == 0, Errc::kInvalidArgument,
            "--routing is \"{}\", must be uniform, zipf:A, hot, limited:G:M or trace:FILE", text);
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
      case RoutingKind::kLimited: draw_limited(stream, choices); break;
      default: choices[0] = 0; break;
    }
  }
  return ids;
}

void RoutingPattern::draw_uniform(std::uint64_t stream, std::int32_t* ids) const {
  std::uint64_t counter = 0;
  sample(stream, counter, num_experts_, num_topk_, ids);
}

void RoutingPattern::draw_limited(std::uint64_t stream, std::int32_t* ids) const {
  std::uint64_t counter = 0;
  const std::int32_t group_size = num_experts_ / num_groups_;
  std::vector<std::int32_t> groups(static_cast<std::size_t>(topk_groups_));
  sample(stream, counter, num_groups_, topk_groups_, groups.data());
  sample(stream, counter, group_size * topk_groups_, num_topk_, ids);
  for (std::int32_t k = 0; k < num_topk_; ++k) {
    ids[k] =
        groups[static_cast<std::size_t>(ids[k] / group_size)] * group_size + ids[k] % group_size;
  }
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
