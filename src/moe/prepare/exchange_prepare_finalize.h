// SPDX-License-Identifier: Apache-2.0
//
// exchange_prepare_finalize.h: every prepare/finalize class: an Exchange by its recipe, before it
// the weights on the input and the ids of another placement, after it quantization of what arrived
// and the ids that the experts see.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/prepare_finalize.h"

#include "core/aligned_buffer.h"
#include "moe/prepare/arrived_rows.h"
#include "moe/prepare/prepare_checks.h"
#include "plan/expert_ownership.h"

namespace switchyard {

class ExchangePrepareFinalize final : public PrepareFinalize {
 public:
  ExchangePrepareFinalize(const PrepareRecipe& recipe, const Group& group,
                          const PrepareFinalizeConfig& config);

  std::string_view name() const override { return name_of(recipe_.kind); }
  PrepareKind kind() const override { return recipe_.kind; }
  ActivationFormat activation_format() const override { return recipe_.format(); }
  std::optional<DType> topk_indices_dtype() const override { return wanted_ids(recipe_, config_); }
  std::optional<std::int64_t> max_num_tokens_per_rank() const override {
    return config_.max_tokens_per_rank;
  }
  const Group& group() const override { return group_; }
  int num_dispatchers() const override { return num_ranks_; }
  bool output_is_reduced() const override { return recipe_.output_is_reduced; }
  bool supports_async() const override { return recipe_.supports_async; }
  std::int64_t hidden() const override { return config_.hidden; }
  std::int32_t num_topk() const override { return config_.num_topk; }
  int num_micro_batches() const override { return config_.num_micro_batches; }
  std::int64_t max_buffer_rows() const override { return max_buffer_rows_; }
  std::int32_t num_local_experts() const override { return ownership_.count(rank_); }
  const TensorView& expert_map() const override { return expert_map_.view(); }

  void post_init_setup(const Experts& experts) override;
  Pending<Prepared> prepare_async(const PrepareArguments& arguments) override;
  Pending<void> finalize_async(const FinalizeArguments& arguments) override;
  void abandon(int micro_batch, const std::string& reason) override;
  std::vector<RowOrigin> row_origins(int micro_batch) const override;
  WireBytes wire_bytes(int micro_batch) const override;

 private:
  struct MicroBatch {
    bool is_busy = false;          ///< prepared and not finalized
    bool is_deferred = false;      ///< the experts quantize
    bool is_weighted = false;      ///< the weights went onto the input
    Exchange* exchange = nullptr;  ///< that of the last prepare
    std::int64_t num_tokens = 0;   ///< T of the last prepare
    DispatchHandle handle;
    Dispatched dispatched;
    Prepared prepared;
    Tensor weighted;  ///< hidden x weight
    Tensor ones;
    Tensor physical_ids;
    Tensor topk_ids;  ///< of received rows
    Tensor reduced;   ///< [M, H], from [M, K, H]
    std::unique_ptr<ArrivedRows> quantizer;
  };

  Exchange& exchange(bool is_plain);
  const Exchange& exchange_of(const MicroBatch& batch) const;
  const MicroBatch& batch_of(int micro_batch) const;
  MicroBatch& batch_of(int micro_batch) {
    return const_cast<MicroBatch&>(std::as_const(*this).batch_of(micro_batch));
  }

  // prepare_input.cpp: what goes into dispatch
  TensorView weigh_input(MicroBatch& batch, const PrepareArguments& arguments) const;
  void write_weighted(const MicroBatch& batch, const TensorView& hidden) const;
  TensorView to_physical(MicroBatch& batch, const TensorView& topk_ids) const;

  void receive(MicroBatch& batch);
  CombineOptions combine_options(MicroBatch& batch, bool is_weighted) const;
  void describe(MicroBatch& batch) const;
  TensorView prefill_ids(MicroBatch& batch) const;
  TensorView physical_ids(MicroBatch& batch) const;
  TensorView to_send(MicroBatch& batch, const FinalizeArguments& arguments) const;

  PrepareRecipe recipe_;
  PrepareFinalizeConfig config_;
  Group group_;
  int rank_;
  int num_ranks_;
  ExpertOwnership ownership_;
  std::int64_t max_buffer_rows_ = 0;
  Tensor expert_map_;  ///< [E + 1] physical id to local index or -1; the last entry is "none"
  std::unique_ptr<Exchange> exchanges_[2];  ///< as configured; unquantized, made when first wanted
  std::vector<MicroBatch> batches_;
};

}  // namespace switchyard
