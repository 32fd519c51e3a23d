// SPDX-License-Identifier: Apache-2.0
//
// prepare_finalize.h: quantize + dispatch before the experts, combine + weigh + reduce after them,
// in one object because both sides share the state of the exchange.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token     H  elements per token
//   N  rows of the receive buffer
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/exchange.h"
#include "switchyard/expert_rows.h"
#include "switchyard/experts.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/quant.h"
#include "switchyard/tensor.h"
#include "switchyard/weight_and_reduce.h"

namespace switchyard {

/// Which experts fit.
enum class ActivationFormat : std::uint8_t {
  kStandard,  ///< [M, H]: grouped by expert, or one row per token with its ids
  kBatched,   ///< [L, capacity, H]
};

/// The classes. Each is an Exchange with a layout and a rule for where rows are quantized.
enum class PrepareKind : std::uint8_t {
  kLowLatency,        ///< batched; DeepEP's low-latency calls (vLLM: DeepEPLLPrepareAndFinalize)
  kElasticDecode,     ///< compact, fixed shapes; DeepEP V2 without expansion, and its V1
                      ///< high-throughput calls (DeepEPV2PrepareAndFinalize, DeepEPHT...)
  kElasticPrefill,    ///< expanded, exact shapes; DeepEP V2 with expansion
  kAllGather,         ///< every token everywhere, reduce-scatter (MoEPrepareAndFinalizeNaiveDPEP)
  kAllToAll,          ///< compact, [P x Tmax] rows; FlashInfer's two-sided all-to-all
  kAllToAllOneSided,  ///< [P, Tmax] rows; FlashInfer's one-sided all-to-all
  kLocal,             ///< no exchange: [T, H] in token order (...NoDPEP)
};

/// @{ "low_latency", "elastic_decode", "elastic_prefill", "all_gather", "all_to_all",
/// "all_to_all_one_sided", "local".
SWITCHYARD_API const char* name_of(PrepareKind kind) noexcept;
SWITCHYARD_API std::optional<PrepareKind> prepare_kind_from_name(std::string_view name) noexcept;
/// @}

/// A split call. `hook` performs the receive part and is called exactly once, before `receiver`;
/// `receiver` returns the result. Without a hook, `receiver` does both.
template <typename Result>
struct Pending {
  std::function<void()> hook;        ///< receives; or empty
  std::function<Result()> receiver;  ///< returns the result
};

/// Rows of each local expert, as in vLLM's ExpertTokensMetadata.
struct ExpertTokensMetadata {
  TensorView expert_num_tokens{};      ///< [L] i32, where the rows are
  TensorView expert_num_tokens_cpu{};  ///< [L] i32 in host memory; on GPUs with host counts
};

/// What prepare hands to the experts: memory of the class, on its device, valid until finalize of
/// the same micro-batch has returned. On GPUs it is filled in stream order, and tensors have the
/// largest shape of the call.
struct Prepared {
  /// Activations and scales. kLowLatency and kElasticPrefill: also where each expert's rows are.
  /// Token-major classes: first_row is absent, num_rows counts the tokens routed to each local
  /// expert. kLocal: row t is token t.
  ExpertRows experts;
  TensorView total_rows;  ///< [1] i32: valid rows
  /// kLowLatency: real counts; kElasticPrefill: counts rounded up to the alignment.
  std::optional<ExpertTokensMetadata> metadata;
  /// [M, K], kElasticPrefill [M, 1]: physical ids, -1 for no expert and in rows without a token.
  /// kElasticDecode and kAllToAll: only this rank's experts; kAllToAll writes E instead of -1. i64
  /// for the elastic classes, else i32. Absent: the caller's own hold.
  TensorView topk_ids;
  TensorView topk_weights;         ///< f32, as topk_ids; 0 in rows without a token
  std::optional<HostCounts> host;  ///< as Dispatched::host
};

/// What prepare takes.
struct PrepareArguments {
  TensorView hidden;        ///< [T, H] bf16, f16 or f32
  TensorView topk_ids;      ///< [T, K] i32 or i64; -1: none
  TensorView topk_weights;  ///< [T, K] f32
  /// Multiplies each row by its weight (rounded to the row's dtype first, as in vLLM) before
  /// dispatch, and uses weight 1 afterwards; K must be 1.
  bool apply_router_weight_on_input = false;
  int micro_batch = 0;  ///< from 0 to num_micro_batches - 1: each has a handle of its own
  /// Rows arrive unquantized, for experts that quantize them. The same on every rank. If rows
  /// otherwise travel quantized, PrepareFinalizeConfig::defers_input_quant is required.
  bool defer_input_quant = false;
  /// apply_router_weight_on_input writes into `hidden` instead of a copy.
  bool weighs_in_place = false;
  /// The largest T of all ranks in this call, the same on each (CPUs check it); 0:
  /// max_tokens_per_rank. Sizes of the classes with fixed shapes follow it, on GPUs those of all
  /// but kLowLatency; kElasticDecode rounds it up to a power of two.
  std::int64_t max_tokens = 0;
  /// On GPUs: the host waits for counts, which sets Prepared::host and expert_num_tokens_cpu. See
  /// DispatchOptions::host_counts.
  bool host_counts = false;
  /// CPUs, prepare_async: `hidden` may be overwritten before the receive part. See
  /// DispatchOptions::copies_inputs.
  bool copies_inputs = false;
};

/// What finalize takes.
struct FinalizeArguments {
  TensorView output;  ///< [T, H] bf16, f16 or f32; the receive part writes it
  /// Rows at the places of Prepared::experts, [N, H] or [L, C, H], bf16, f16 or f32; unchanged
  /// until received, unless copies_inputs is set. Token-major: [M, H], weighted and summed
  /// over this rank's experts (no_op), or [M, K, H] (delegate, contiguous).
  TensorView expert_output;
  /// delegate: the class weights and sums the rows. For rows grouped by expert, no_op means that
  /// they are weighted already; contiguous (kElasticPrefill) weights them first and rounds to their
  /// dtype; other policies are refused.
  WeightAndReduce weight_and_reduce{};
  int micro_batch = 0;  ///< as in prepare
  /// [T, H] bf16, on CPUs also f32: added to the rounded output, which is rounded again; read by
  /// the receive part.
  TensorView shared{};
  /// [M, H] dtype of expert_output: memory for the sums of [M, K, H] rows and of contiguous, which
  /// weights in place, in expert_output. Required on GPUs; absent on CPUs: allocated.
  TensorView reduced{};
  /// As in the originals' finalize; absent: those of prepare. f32 of the shape of
  /// Prepared::topk_weights, or [T, K] where these are absent; unchanged until received. They
  /// replace the weights of prepare, except after apply_router_weight_on_input, which uses 1. Where
  /// combine applies the weights that travelled with the rows (delegate in kElasticPrefill, and
  /// with kPerRank in kLowLatency), others are kNotSupported.
  TensorView topk_weights{};
  TensorView topk_ids{};  ///< i32 or i64, likewise; must be those of prepare; CPUs check that
  /// CPUs, finalize_async: expert_output may be overwritten before the receive part.
  bool copies_inputs = false;
};

/// The shape follows vLLM's FusedMoEPrepareAndFinalizeModular, so that its users find their
/// methods.
///
/// - All calls are collective over the group; one thread of a rank at a time makes them, in the
///   same order on every rank. Streams and tensors are of device().
/// - The constructor allocates for the largest call.
/// - On GPUs the host does not wait and calls may be captured in a CUDA graph; errors in data or of
///   peers appear through check() and the next call. See Exchange.
///
/// A first launch of a kernel may wait for the GPU: ranks that are threads and share a GPU need
/// CUDA_MODULE_LOADING=EAGER in the environment.
///
/// Errors of every call: kInvalidArgument at once, with nothing sent; kTimeout, kPeerLost,
/// kAborted; on GPUs also kSystem.
class SWITCHYARD_API PrepareFinalize {
 public:
  PrepareFinalize() = default;
  PrepareFinalize(const PrepareFinalize&) = delete;
  PrepareFinalize& operator=(const PrepareFinalize&) = delete;
  virtual ~PrepareFinalize() = default;

  /// @{ Which class this is, where it works, and which experts fit.
  virtual std::string_view name() const = 0;
  virtual PrepareKind kind() const = 0;
  virtual Device device() const = 0;
  virtual ActivationFormat activation_format() const = 0;
  /// @}
  /// The dtype that topk_ids must have; nothing: i32 or i64.
  virtual std::optional<DType> topk_indices_dtype() const = 0;
  /// Upper bound on T; nothing: none.
  virtual std::optional<std::int64_t> max_num_tokens_per_rank() const = 0;
  /// The ranks; with kLocal this one alone.
  virtual const Group& group() const = 0;
  /// Ranks that may send to this one.
  virtual int num_dispatchers() const = 0;
  /// True when finalize has summed over all ranks that hold parts of a token.
  virtual bool output_is_reduced() const = 0;
  /// What the original's class says; ours can always be split.
  virtual bool supports_async() const = 0;
  /// H.
  virtual std::int64_t hidden() const = 0;
  /// K.
  virtual std::int32_t num_topk() const = 0;
  /// Handles that may be open at once.
  virtual int num_micro_batches() const = 0;
  /// Rows of the receive buffer that experts must be ready for.
  virtual std::int64_t max_buffer_rows() const = 0;

  /// Experts of this rank, L.
  virtual std::int32_t num_local_experts() const = 0;
  /// i32 [E + 1]: local index of each physical expert or -1; the last entry, of no expert, is -1.
  virtual const TensorView& expert_map() const = 0;

  /// @{ How rows are handed to the experts, and in which scale layout.
  virtual QuantScheme row_scheme(bool is_deferred) const = 0;
  virtual ScaleLayout row_scale_layout(bool is_deferred) const = 0;
  /// @}
  /// @{ See Exchange::heap and Exchange::is_shared_gpu.
  virtual const char* heap() const = 0;
  virtual bool is_shared_gpu() const = 0;
  /// @}
  /// What this rank takes of its device; receive_bytes includes the scratch of the class.
  virtual ExchangeMemory memory() const = 0;

  /// Called once by the kernel, before the first prepare, with its experts. If they support packed
  /// UE8M0 scales, LowLatency sends those, and kColumnMajor scales become kColumnMajorAligned; if
  /// they expect unquantized rows, defers_input_quant is set. Collective; may allocate.
  virtual void post_init_setup(const Experts& experts) = 0;

  /// Sends in `stream`; the hook receives in `receive_stream`. The caller orders the two when they
  /// differ: the receive part comes after the send.
  virtual Pending<Prepared> prepare_async(const PrepareArguments& arguments, Stream stream,
                                          Stream receive_stream) = 0;
  /// Both parts in one stream.
  Pending<Prepared> prepare_async(const PrepareArguments& arguments,
                                  Stream stream = Stream::host()) {
    return prepare_async(arguments, stream, stream);
  }
  /// Both parts, by one dispatch of Exchange.
  virtual Prepared prepare(const PrepareArguments& arguments, Stream stream = Stream::host()) = 0;

  /// Returns expert results to the owners of their tokens; the receive part writes the output.
  /// First runs the hooks that dbo_register_recv_hook left to this micro-batch, as in vLLM.
  virtual Pending<void> finalize_async(const FinalizeArguments& arguments, Stream stream,
                                       Stream receive_stream) = 0;
  /// Both parts in one stream.
  Pending<void> finalize_async(const FinalizeArguments& arguments, Stream stream = Stream::host()) {
    return finalize_async(arguments, stream, stream);
  }
  /// Both parts.
  virtual void finalize(const FinalizeArguments& arguments, Stream stream = Stream::host()) = 0;

  /// Gives up a prepared micro-batch because its experts failed. A group of one rank goes on; with
  /// peers, which wait for the results, the group is aborted.
  virtual void abandon(int micro_batch, const std::string& reason) = 0;

  /// @{ For reports: where each row came from, and bytes that left this rank. After prepare. On
  /// GPUs kNotSupported.
  virtual std::vector<RowOrigin> row_origins(int micro_batch = 0) const = 0;
  virtual WireBytes wire_bytes(int micro_batch = 0) const = 0;
  /// @}

  /// See Exchange::check.
  virtual void check() const = 0;

  /// See Exchange::close. What prepare has returned stays valid until destruction.
  virtual void close(bool waits_for_peers = true) = 0;
};

/// How a class is configured.
struct PrepareFinalizeConfig {
  std::int32_t num_experts = 0;          ///< E
  std::int32_t num_topk = 0;             ///< K
  std::int64_t hidden = 0;               ///< H
  std::int64_t max_tokens_per_rank = 0;  ///< upper bound on T, over all ranks
  /// How the experts get their rows. Unquantized rows travel in the scheme's dtype; with
  /// bf16 (kNone), f16 and f32 rows are refused rather than rounded.
  QuantScheme scheme = schemes::kNone;
  /// How rows travel. Absent: as `scheme` if a sender can apply it, else unquantized; a dynamic
  /// per-tensor scale is computed over the valid rows that arrived. With another wire scheme, rows
  /// are dequantized on arrival, rounded to bf16 and quantized again.
  std::optional<QuantScheme> wire_scheme{};
  /// The static scale of per-tensor schemes (vLLM's a1_scale), the global scale of nvfp4
  /// (a1_gscale). Positive and finite; the same on every rank.
  std::optional<float> static_scale{};
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;  ///< of what experts get
  /// Absent: per_expert for kLowLatency and kLocal, else per_rank. With kLocal both are one.
  std::optional<Reduce> reduce{};
  /// Format of returned rows. If unquantized, its dtype is also that of rows that are quantized on
  /// arrival.
  QuantScheme combine_scheme = schemes::kNone;
  std::int64_t expert_alignment = 1;  ///< kElasticPrefill
  /// Handles that may be open at once; 0: as many as the mirrored class has, two in kLowLatency and
  /// the elastic classes, else one.
  std::int32_t num_micro_batches = 0;
  /// [E] physical id of each expert id, for placements other than linear; -1 stays. Empty:
  /// ids are physical.
  std::vector<std::int32_t> global_to_physical{};
  /// kAllGather: every rank of the group gets every token and holds a slice of each of the E
  /// experts (tensor parallelism inside the MoE layer) or, with ep_size above 1, some experts
  /// whole. Finalize adds the ranks' results in rank order.
  bool slices_experts = false;
  /// kLocal, and kAllGather with slices_experts: the experts lie over ep_size ranks, and this one
  /// holds those of ep_rank; expert_map has -1 for the others, and finalize sums none of theirs.
  std::int32_t ep_size = 1;
  std::int32_t ep_rank = 0;  ///< below ep_size
  /// Allocates a second exchange, for unquantized rows, which PrepareArguments::defer_input_quant
  /// requires where rows travel quantized. The same on every rank.
  bool defers_input_quant = false;
  /// [P] How many experts each rank holds, as ExchangeConfig::experts_per_rank; empty: equal
  /// numbers. Not for kLocal and slices_experts.
  std::vector<std::int32_t> experts_per_rank{};
};

/// Collective, except for kLocal, which ignores the group.
///
/// Errors: kInvalidArgument, kNotSupported, kOutOfMemory. On GPUs also those of Exchange, and
/// kNotSupported for f16 or f32 rows on the wire of a simulated scheme.
SWITCHYARD_API std::unique_ptr<PrepareFinalize> make_prepare_finalize(
    PrepareKind kind, const Group& group, const PrepareFinalizeConfig& config,
    const ExchangeOptions& options = {});

/// @{ make_prepare_finalize of kLowLatency and of kLocal.
SWITCHYARD_API std::unique_ptr<PrepareFinalize> make_low_latency(
    const Group& group, const PrepareFinalizeConfig& config, const ExchangeOptions& options = {});
SWITCHYARD_API std::unique_ptr<PrepareFinalize> make_local(const PrepareFinalizeConfig& config,
                                                           const ExchangeOptions& options = {});
/// @}

/// Memory of one rank on CPUs, in bytes, without the scratch that follows T. Pure. With
/// defers_input_quant both exchanges are counted. Errors: kInvalidArgument.
SWITCHYARD_API ExchangeMemory prepare_finalize_memory(PrepareKind kind,
                                                      const PrepareFinalizeConfig& config,
                                                      int num_ranks, int rank);

/// The smallest hidden size that DeepEP's low-latency kernels are compiled for and that is not
/// below `hidden`: 2048, 2560, 3072, 4096, 5120, 6144, 7168 or 8192. Ours take any; for code that
/// pads as vLLM does. Errors: kInvalidArgument above 8192.
SWITCHYARD_API std::int64_t round_up_hidden_low_latency(std::int64_t hidden);

/// The smallest hidden size not below `hidden` whose rows are a multiple of 512 bytes (DeepEP's
/// high-throughput and V2 buffers, as vLLM pads for them).
SWITCHYARD_API std::int64_t round_up_hidden_512_bytes(std::int64_t hidden, DType dtype);

}  // namespace switchyard
