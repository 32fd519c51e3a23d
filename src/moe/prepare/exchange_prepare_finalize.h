// SPDX-License-Identifier: Apache-2.0
//
// exchange_prepare_finalize.h: every prepare/finalize class on either device: an Exchange by its
// recipe, before it the weights on the input and the ids of another placement, after it
// quantization of what arrived and the ids that the experts see.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/prepare_finalize.h"

#include "moe/prepare/arrived_rows.h"
#include "moe/prepare/prepare_checks.h"

namespace switchyard {

class ExchangePrepareFinalize final : public PrepareFinalize {
 public:
  ExchangePrepareFinalize(const PrepareRecipe& recipe, const Group& group,
                          const PrepareFinalizeConfig& config, const ExchangeOptions& options);

  std::string_view name() const override { return name_of(recipe_.kind); }
  PrepareKind kind() const override { return recipe_.kind; }
  Device device() const override { return exchange_options_.device; }
  ActivationFormat activation_format() const override { return recipe_.format(); }
  std::optional<DType> topk_indices_dtype() const override { return std::nullopt; }
  std::optional<std::int64_t> max_num_tokens_per_rank() const override {
    return config_.max_tokens_per_rank;
  }
  const Group& group() const override { return group_; }
  int num_dispatchers() const override { return group_.size(); }
  bool output_is_reduced() const override { return recipe_.output_is_reduced; }
  bool supports_async() const override { return recipe_.supports_async; }
  std::int64_t hidden() const override { return config_.hidden; }
  std::int32_t num_topk() const override { return config_.num_topk; }
  int num_micro_batches() const override { return config_.num_micro_batches; }
  std::int64_t max_buffer_rows() const override { return max_buffer_rows_; }
  std::int32_t num_local_experts() const override { return experts_.count(); }
  const TensorView& expert_map() const override { return expert_map_.view(); }
  QuantScheme row_scheme(bool is_deferred) const override;
  ScaleLayout row_scale_layout(bool is_deferred) const override {
    return is_deferred ? ScaleLayout::kRowMajor : config_.scale_layout;
  }
  const char* heap() const override { return exchanges_[0]->heap(); }
  bool is_shared_gpu() const override { return exchanges_[0]->is_shared_gpu(); }
  ExchangeMemory memory() const override;

  void post_init_setup(const Experts& experts) override;
  using PrepareFinalize::prepare_async;
  Pending<Prepared> prepare_async(const PrepareArguments& arguments, Stream stream,
                                  Stream receive_stream) override;
  Prepared prepare(const PrepareArguments& arguments, Stream stream) override;
  using PrepareFinalize::finalize_async;
  Pending<void> finalize_async(const FinalizeArguments& arguments, Stream stream,
                               Stream receive_stream) override;
  void finalize(const FinalizeArguments& arguments, Stream stream) override;
  void abandon(int micro_batch, const std::string& reason) override;
  std::vector<RowOrigin> row_origins(int micro_batch) const override;
  WireBytes wire_bytes(int micro_batch) const override;
  void check() const override;
  void close(bool waits_for_peers) override;

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
    // Memory for the largest call.
    Tensor weighted;        ///< [T, H] of up to 4 bytes: hidden x weight; K = 1 only
    Tensor physical_ids;    ///< [T, K] i32, where ids are renamed
    Tensor topk_ids;        ///< of received rows
    Tensor aligned_counts;  ///< [L] i32
    Tensor end;             ///< [1] i32: the row behind the last expert's
    Tensor rows_per_rank;   ///< [P] i32, on GPUs by rank with a dynamic scale of a tensor
    Tensor reduced;         ///< [M, H], from [M, K, H]; on CPUs, from call to call
    Tensor sent_ids;        ///< [T, K] i64 of the last prepare; on CPUs, where none are handed out
    std::vector<std::int32_t> host_counts;  ///< [L] of the metadata, on GPUs
    std::unique_ptr<ArrivedRows> quantizer;
  };
  /// What dispatch is given, and by which exchange it goes.
  struct Input {
    Exchange* exchange = nullptr;
    bool is_deferred = false;
    TensorView hidden;
    TensorView topk_ids;
    TensorView topk_weights;
    DispatchOptions options;
  };

  /// Received ids are made here: rows of an expert name it; local ids become physical.
  bool marks_rows() const { return recipe_.kind == PrepareKind::kElasticPrefill; }
  bool renames_received() const { return recipe_.layout == Layout::kCompact; }

  Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape);
  template <typename T>
  Tensor upload(DType dtype, const std::vector<T>& values);
  void allocate_memory();
  void allocate_batch_memory(MicroBatch& batch);
  void make_exchanges(bool is_plain);
  const MicroBatch& batch_of(int micro_batch) const;
  MicroBatch& batch_of(int micro_batch) {
    return const_cast<MicroBatch&>(std::as_const(*this).batch_of(micro_batch));
  }
  MicroBatch& busy_batch_of(int micro_batch);
  const Exchange& exchange_of(const MicroBatch& batch) const;
  Exchange& exchange_for(const PrepareArguments& arguments, bool is_deferred) const;

  // prepare_rows.cpp: what goes into dispatch, and what is handed out of what came
  Input begin(MicroBatch& batch, const PrepareArguments& arguments, Stream stream) const;
  void weigh_input(MicroBatch& batch, const PrepareArguments& arguments, Input& input,
                   Stream stream) const;
  TensorView to_physical(MicroBatch& batch, const TensorView& topk_ids, Stream stream) const;
  void sent(MicroBatch& batch, const Input& input, const PrepareArguments& arguments,
            Stream stream) const;
  void keep_ids(MicroBatch& batch, const TensorView& topk_ids) const;
  void arrived(MicroBatch& batch, Stream stream) const;
  void add_metadata(MicroBatch& batch, const TensorView& counts) const;
  void keep_own_counts(MicroBatch& batch) const;
  void mark_received(MicroBatch& batch, Stream stream) const;
  void rename_received(MicroBatch& batch, Stream stream) const;
  TensorView valid_rows(const MicroBatch& batch, Stream stream) const;

  void receive(MicroBatch& batch, Stream stream);

  // finalize_rows.cpp: what goes into combine
  void check_choices(const MicroBatch& batch, const FinalizeArguments& arguments) const;
  TensorView new_weights(const MicroBatch& batch, const FinalizeArguments& arguments) const;
  CombineOptions combine_options(const MicroBatch& batch, const FinalizeArguments& arguments) const;
  TensorView to_send(MicroBatch& batch, const FinalizeArguments& arguments, Stream stream) const;

  PrepareRecipe recipe_;
  PrepareFinalizeConfig config_;
  Group group_;
  ExchangeOptions exchange_options_;
  ExpertHolder experts_;
  std::int64_t max_buffer_rows_ = 0;
  std::size_t scratch_bytes_ = 0;
  Tensor expert_map_;    ///< [E + 1] physical id to local index or -1; the last entry is "none"
  Tensor physical_;      ///< [E] global to physical, or absent
  Tensor static_scale_;  ///< [1] f32, or absent
  Tensor ones_;          ///< [T, K] f32
  std::vector<MicroBatch> batches_;
  /// As configured; unquantized. Each micro-batch has the slot of its number. Last: they end before
  /// memory does.
  std::unique_ptr<Exchange> exchanges_[2];
};

}  // namespace switchyard
