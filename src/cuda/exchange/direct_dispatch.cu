// SPDX-License-Identifier: Apache-2.0
//
// Selects the kernel of direct_dispatch.cuh for a call.

#include "core/round_up.h"
#include "cuda/exchange/direct_dispatch.cuh"
#include "cuda/exchange/direct_forms.h"
#include "cuda/exchange/wire_form.h"

namespace switchyard::cuda {
namespace {

constexpr int kUnitBits = 8 * static_cast<int>(kUnitBytes);
constexpr int kMaxNumbers = 4096;  ///< of rows that a sender has in shared memory

bool are_units(std::int64_t bytes) { return bytes % static_cast<std::int64_t>(kUnitBytes) == 0; }
bool is_at_unit(const void* address) {
  return are_units(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address)));
}

bool has_scales(const DispatchArgs& args) {
  return args.layout.shape.chunk_scale_bytes > 0 && args.scales.block.num_scales > 0;
}
std::int64_t scale_bytes(const DispatchArgs& args) {
  return args.scales.block.num_scales * args.scales.block.element_bytes;
}
std::int64_t given_scale_bytes(const DispatchArgs& args) {
  return args.tokens.scale_stride[0] * args.scales.block.element_bytes;
}

/// Whether the scales of a row are whole units, one after another, where they are given and where
/// they go.
bool copies_scales(const DispatchArgs& args) {
  const ScalePlacement& to = args.scales;
  return args.tokens.scales != nullptr && args.tokens.scale_stride[1] == 1 && !to.are_tiled &&
         to.step == to.block.element_bytes && are_units(scale_bytes(args)) &&
         are_units(given_scale_bytes(args)) && are_units(to.row_step) &&
         is_at_unit(args.tokens.scales) && is_at_unit(to.data) &&
         scale_bytes(args) <= static_cast<std::int64_t>(kLanes * kUnitBytes);
}

/// Rows stay as they are given.
bool copies_rows(const DispatchArgs& args) {
  return args.tokens.dtype == args.scheme.dtype && !args.scheme.is_simulated() &&
         args.tokens.numbers == nullptr && args.tokens.are_aligned && args.received.are_aligned &&
         is_at_unit(args.received.rows) && (!has_scales(args) || copies_scales(args));
}

std::int32_t row_units(const DispatchArgs& args) {
  return static_cast<std::int32_t>(cdiv<std::int64_t>(
      args.layout.shape.hidden * wire_bits(args.scheme.dtype), std::int64_t{kUnitBits}));
}

/// Of a token's ids, where they are whole units.
std::int32_t id_units(const DispatchArgs& args) {
  const std::int64_t bytes = std::int64_t{args.num_topk} * (args.tokens.ids.are_64_bits ? 8 : 4);
  const bool are_whole = are_units(bytes) && is_at_unit(args.tokens.ids.data);
  return are_whole ? static_cast<std::int32_t>(bytes / static_cast<std::int64_t>(kUnitBytes)) : 0;
}

/// Those of a share, with its first and last token in part, as far as there is room.
std::int32_t batch_tokens(const DispatchArgs& args) {
  const int share = cdiv(args.tokens.count, std::max(1, args.grid.num_senders)) + 2;
  const int most = std::max(kLanes, kMaxNumbers / args.ownership.num_ranks);
  return std::min(align_up(share, kLanes), most);
}

void direct_plain(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                  cudaStream_t stream) {
  if (args.scheme.dtype == DType::kF32) {
    return launch_direct_form<PlainForm32>(args, phases, programmatic, stream);
  }
  launch_direct_form<PlainForm16>(args, phases, programmatic, stream);
}

void direct_fp8_block(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                      cudaStream_t stream) {
  launch_direct_form<Fp8BlockForm>(args, phases, programmatic, stream);
}

}  // namespace

DirectChunks direct_chunks(const DispatchArgs& args) {
  if (!copies_rows(args)) return {.of_row = args.layout.num_chunks, .together = 1};
  return {.of_row = cdiv(row_units(args), kLanes), .together = kMaxCopiedChunks};
}

void launch_direct_dispatch(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                            cudaStream_t stream) {
  DirectDispatchArgs to = args;
  to.units.ids_of_token = id_units(args);
  to.units.tokens_of_batch = batch_tokens(args);
  const bool runs_all = phases == Phases::kNone;
  const bool copies = copies_rows(args);
  if (copies || runs_all) {
    to.units.row = row_units(args);
    to.units.scales =
        has_scales(args)
            ? static_cast<std::int32_t>(scale_bytes(args) / static_cast<std::int64_t>(kUnitBytes))
            : 0;
    to.units.given_scales = given_scale_bytes(args);
    direct_copy(to, phases, programmatic, stream);
  }
  if (copies && !runs_all) return;
  const QuantScheme& scheme = args.scheme;
  const auto dispatch = !scheme.is_quantized()              ? direct_plain
                        : scheme.is_simulated()             ? direct_simulated
                        : scheme.dtype == DType::kE2M1      ? direct_form4
                        : args.tokens.dtype == scheme.dtype ? direct_other8
                        : is_fp8_block(scheme)              ? direct_fp8_block
                                                            : direct_other8;
  dispatch(to, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
