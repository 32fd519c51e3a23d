// SPDX-License-Identifier: Apache-2.0
//
// routing_pattern.h: which experts the tokens of a measurement choose. Ids depend only on the seed,
// the iteration and the rank, so every rank can compute what the others send.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace switchyard::measure {

enum class RoutingKind : std::uint8_t {
  kUniform,  ///< distinct experts, all equally likely
  kZipf,     ///< chooses expert i of a shuffled list in proportion to 1 / (i + 1)^exponent
  kHot,      ///< the first choice of every token is expert 0; its other choices are -1
  kLimited,  ///< all experts of a few groups, as routers with n_group and topk_group choose
  kTrace,    ///< consecutive rows of a file
};

/// The topk_ids of a file, shared by all copies of a pattern.
struct RoutingTrace;

class RoutingPattern {
 public:
  RoutingPattern() = default;

  /// `text` is "uniform", "zipf:A" with A from 0 to 10, "hot", "limited:G:M": the experts of M
  /// groups, equally likely, of G equal groups, equally likely; or "trace:FILE": a safetensors file
  /// with topk_ids [N, K] i32 or i64, or with several tensors named *.topk_ids, through which
  /// iterations rotate. Errors: kInvalidArgument; for a file also kSystem, kMalformedFile (shape,
  /// ids outside [-1, E)).
  static RoutingPattern parse(const std::string& text, std::int32_t num_experts,
                              std::int32_t num_topk);

  RoutingKind kind() const { return kind_; }
  const std::string& text() const { return text_; }
  std::int32_t num_experts() const { return num_experts_; }
  std::int32_t num_topk() const { return num_topk_; }
  std::int32_t num_groups() const { return num_groups_; }  ///< 1 except for kLimited

  /// Returns [T, K], the choices of `num_tokens` tokens of one rank out of `num_ranks`.
  std::vector<std::int32_t> ids(std::uint64_t seed, std::int64_t iteration, int rank, int num_ranks,
                                std::int64_t num_tokens) const;

 private:
  void draw_uniform(std::uint64_t stream, std::int32_t* ids) const;
  void draw_limited(std::uint64_t stream, std::int32_t* ids) const;
  void draw_zipf(std::uint64_t stream, std::int32_t* ids) const;
  void replay_trace(std::int64_t iteration, int rank, int num_ranks, std::int64_t num_tokens,
                    std::vector<std::int32_t>& ids) const;

  RoutingKind kind_ = RoutingKind::kUniform;
  std::string text_ = "uniform";
  std::int32_t num_experts_ = 1;
  std::int32_t num_topk_ = 1;
  std::int32_t num_groups_ = 1;   ///< kLimited
  std::int32_t topk_groups_ = 1;  ///< kLimited
  std::vector<double> weights_;   ///< kZipf: [E]
  std::shared_ptr<const RoutingTrace> trace_;
};

}  // namespace switchyard::measure
