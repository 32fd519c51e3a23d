// SPDX-License-Identifier: Apache-2.0
//
// layer_run.h: a whole MoE layer on one rank through a prepare/finalize class, and what the oracle
// says that it gives.
#pragma once

#include <optional>
#include <string>

#include "switchyard/modular_kernel.h"
#include "switchyard/prepare_finalize.h"

#include "conformance/arena.h"
#include "conformance/compare.h"
#include "conformance/exchange_values.h"
#include "conformance/random_batch.h"

namespace switchyard::conformance {

enum class SharedKind : std::uint8_t { kNone, kPlain, kGated, kGatedFirst };

struct LayerCase {
  std::string name{};  ///< of what it tries, beside every pair of the other factors
  PrepareKind kind = PrepareKind::kLowLatency;
  QuantScheme scheme = schemes::kNone;
  Reduce reduce = Reduce::kPerExpert;
  int num_ranks = 2;
  BatchShape shape;
  std::int64_t intermediate = 40;
  std::int64_t num_tokens = 23;  ///< of all ranks, split unevenly
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;
  bool weighs_input = false;         ///< apply_router_weight_on_input; wants num_topk 1
  bool weighs_in_place = false;      ///< which changes the tokens
  bool has_static_scale = false;     ///< for schemes with one scale per tensor
  bool quantizes_activation = true;  ///< between the two GEMMs too
  int num_micro_batches = 1;
  bool has_wide_ids = false;  ///< i64
  SharedKind shared = SharedKind::kNone;
  DType input = DType::kBF16;                ///< of tokens
  std::optional<QuantScheme> wire_scheme{};  ///< absent: `scheme`
  bool defers = false;                       ///< rows are not quantized before the experts
  bool renames = false;                      ///< experts are at other places than their ids say
  bool limits_calls = false;                 ///< the call states its own max_tokens
  bool slices_experts = false;               ///< every rank has a slice of every expert
  std::int64_t alignment = 1;                ///< of elastic_prefill
  std::string experts = "exact";
  float magnitude = 1.0f;  ///< of tokens; weights are N(0, 1) / 10

  /// Of results: f32 where nothing is rounded.
  DType output() const {
    return quantizes_activation && scheme == QuantScheme{DType::kF32} ? DType::kF32 : DType::kBF16;
  }
};

class LayerRun {
 public:
  LayerRun(const Group& group, const LayerCase& test, std::uint64_t seed);

  /// The output of this rank by the library; on a GPU micro-batches follow one another. Collective.
  /// `agreement` is told how GPUs share memory, and why a layer that they do not support is
  /// skipped; then the output is absent. There "onednn" stands for cuBLAS.
  Tensor run(const Group& group, Device device, Agreement& agreement) const;

  /// The oracle's, from every rank's tokens: the same bits.
  reference::Table<float> exact() const;

  /// The oracle's, of this rank's tokens alone, with unquantized activations between the GEMMs.
  reference::Table<float> plain() const;

 private:
  /// What the library is given.
  struct Setup {
    PrepareFinalizeConfig config;
    Tensor gate, up, down;
    Tensor shared_gate, shared_up, shared_down;
    Tensor row_gate;  ///< of the shared expert
    ExpertOptions options;
    Bytes tokens;
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> wide_ids;
    PrepareArguments arguments;  ///< views of this and of the batch

    ExpertWeights weights() const { return {gate, up, down, {}, {}, {}}; }
    ExpertWeights shared_weights() const {
      return {shared_gate, shared_up, shared_down, {}, {}, {}};
    }
  };
  Setup set_up() const;
  SharedExpert shared_expert(const Setup& setup, const TensorView& row_gate, Device device) const;
  reference::Table<float> routed() const;  ///< without the shared expert
  reference::Table<float> routed_in_slices() const;
  reference::Batch gathered() const;  ///< one rank with the tokens of all
  reference::MlpWeights slice_of_rank(int rank) const;
  static constexpr std::int64_t kSpareTokens = 2;  ///< configured for more than come

  QuantScheme wire() const;
  reference::Table<float> arrived(const reference::Table<float>& tokens) const;
  reference::Table<float> read_by_experts(const reference::Table<float>& rows,
                                          const reference::Table<float>& all_rows) const;
  std::int64_t max_tokens() const;
  void check_prepared(const Prepared& got, const Arena& arena) const;

  const LayerCase& test_;
  int rank_ = 0;             ///< among those that share the experts
  int num_ranks_ = 1;        ///< of them
  reference::Batch batch_;   ///< their tokens
  reference::Batch served_;  ///< the same after apply_router_weight_on_input
  reference::Layer layer_;   ///< its experts
  std::optional<float> static_scale_;
};

/// Whether this build has the experts "onednn".
bool has_onednn();

}  // namespace switchyard::conformance
