// SPDX-License-Identifier: Apache-2.0
//
// exchange_device_prepare_finalize.h: every prepare/finalize class on GPUs: a DeviceExchange by its
// recipe, which is the CPU's, between the small kernels of cuda/layer_rows.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/device_prepare_finalize.h"

#include "device/device_tensors.h"
#include "moe/prepare/device_arrived_rows.h"
#include "moe/prepare/prepare_checks.h"
#include "plan/expert_ownership.h"

namespace switchyard {

class ExchangeDevicePrepareFinalize final : public DevicePrepareFinalize {
 public:
  ExchangeDevicePrepareFinalize(const PrepareRecipe& recipe, const Group& group,
                                const PrepareFinalizeConfig& config,
                                const DevicePrepareFinalizeOptions& options);

  std::string_view name() const override { return name_of(recipe_.kind); }
  PrepareKind kind() const override { return recipe_.kind; }
  ActivationFormat activation_format() const override { return recipe_.format(); }
  std::optional<DType> topk_indices_dtype() const override { return wanted_ids(recipe_, config_); }
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
  std::int32_t num_local_experts() const override { return ownership_.count(group_.rank()); }
  const TensorView& expert_map() const override { return expert_map_; }
  QuantScheme row_scheme(bool is_deferred) const override;
  ScaleLayout row_scale_layout(bool is_deferred) const override {
    return is_deferred ? ScaleLayout::kRowMajor : config_.scale_layout;
  }
  const char* heap() const override { return exchanges_[0].front()->heap(); }
  bool is_shared_gpu() const override { return exchanges_[0].front()->is_shared_gpu(); }
  ExchangeMemory memory() const override;

  void post_init_setup(const DeviceExperts& experts) override;
  Pending<DevicePrepared> prepare_async(const DevicePrepareArguments& arguments, Stream stream,
                                        Stream receive_stream) override;
  DevicePrepared prepare(const DevicePrepareArguments& arguments, Stream stream) override;
  Pending<void> finalize_async(const DeviceFinalizeArguments& arguments, Stream stream,
                               Stream receive_stream) override;
  void finalize(const DeviceFinalizeArguments& arguments, Stream stream) override;
  void abandon(int micro_batch, const std::string& reason) override;
  void check() const override;

 private:
  struct MicroBatch {
    bool is_busy = false;
    bool is_deferred = false;
    bool is_weighted = false;
    DeviceExchange* exchange = nullptr;
    std::int64_t num_tokens = 0;
    DeviceHandle handle;
    DeviceDispatched dispatched;
    DevicePrepared prepared;
    // Memory for the largest call.
    TensorView weighted;        ///< [T, H] of up to 4 bytes: hidden x weight; K = 1 only
    TensorView physical_ids;    ///< [T, K] i32, where ids are renamed
    TensorView topk_ids;        ///< of received rows
    TensorView aligned_counts;  ///< [L] i32
    TensorView end;             ///< [1] i32: the row behind the last expert's
    std::optional<DeviceArrivedRows> quantizer;
  };
  /// What dispatch is given.
  struct Input {
    TensorView hidden;
    TensorView topk_ids;
    TensorView topk_weights;
    DeviceDispatchOptions options;
  };

  /// Received ids are made here: rows of an expert name it; local ids become physical.
  bool marks_rows() const { return recipe_.kind == PrepareKind::kElasticPrefill; }
  bool renames_received() const { return recipe_.layout == Layout::kCompact; }

  void allocate_memory();
  void make_exchanges(bool is_plain);
  void allocate_batch_memory(MicroBatch& batch);
  MicroBatch& batch_of(int micro_batch);
  DeviceExchange& exchange_for(const DevicePrepareArguments& arguments, bool is_deferred) const;

  // device_prepare_rows.cpp
  Input begin(MicroBatch& batch, const DevicePrepareArguments& arguments, Stream stream);
  void sent(MicroBatch& batch, const DevicePrepareArguments& arguments, Stream stream) const;
  TensorView to_physical(MicroBatch& batch, const TensorView& topk_ids, Stream stream) const;
  void arrived(MicroBatch& batch, Stream stream) const;
  void mark_rows(MicroBatch& batch, Stream stream) const;
  void rename_received(MicroBatch& batch, Stream stream) const;
  TensorView valid_rows(const MicroBatch& batch) const;

  DeviceCombineOptions combine_options(const MicroBatch& batch,
                                       const DeviceFinalizeArguments& arguments) const;
  MicroBatch& busy_batch_of(int micro_batch);
  TensorView to_send(const MicroBatch& batch, const DeviceFinalizeArguments& arguments,
                     Stream stream) const;

  PrepareRecipe recipe_;
  PrepareFinalizeConfig config_;
  Group group_;
  DeviceExchangeOptions exchange_options_;
  ExpertOwnership ownership_;
  std::int64_t max_buffer_rows_ = 0;
  DeviceTensors tensors_;
  TensorView expert_map_;    ///< [E + 1]
  TensorView physical_;      ///< [E] global to physical, or absent
  TensorView static_scale_;  ///< [1] f32, or absent
  TensorView ones_;          ///< [T, K] f32
  std::vector<MicroBatch> batches_;
  /// For each micro-batch one of its own, so that they may run beside one another in any order: as
  /// configured; unquantized. Last: they end before memory does.
  std::vector<std::unique_ptr<DeviceExchange>> exchanges_[2];
};

}  // namespace switchyard
