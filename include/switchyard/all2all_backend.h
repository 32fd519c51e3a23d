// SPDX-License-Identifier: Apache-2.0
//
// all2all_backend.h: the names by which engines choose how tokens reach experts on other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "switchyard/dtype.h"
#include "switchyard/export.h"
#include "switchyard/prepare_finalize.h"

namespace switchyard {

/// vLLM's all2all_backend strings. An alias is a value of its own, so that its name is preserved.
enum class All2AllBackend : std::uint8_t {
  kAllGatherReduceScatter,  ///< the default
  kNaive,                   ///< alias of kAllGatherReduceScatter
  kDeepEpHighThroughput,
  kDeepEpLowLatency,
  kDeepEpV2,
  kFlashInferNvlinkTwoSided,
  kFlashInferAll2AllV,  ///< older name of kFlashInferNvlinkTwoSided
  kFlashInferNvlinkOneSided,
  kMoriHighThroughput,
  kMoriLowLatency,
  kNixlEp,
  kPplx,  ///< removed from vLLM
};

/// @{ "allgather_reducescatter", "naive", "deepep_high_throughput", "deepep_low_latency",
/// "deepep_v2", "flashinfer_nvlink_two_sided", "flashinfer_all2allv",
/// "flashinfer_nvlink_one_sided", "mori_high_throughput", "mori_low_latency", "nixl_ep", "pplx".
SWITCHYARD_API const char* name_of(All2AllBackend backend) noexcept;
SWITCHYARD_API std::optional<All2AllBackend> all2all_backend_from_name(
    std::string_view name) noexcept;
/// @}

/// What a backend's prepare/finalize class reports about itself.
struct All2AllProperties {
  ActivationFormat format = ActivationFormat::kStandard;  ///< of the rows that experts get
  bool supports_async = false;                            ///< sends and receives may be apart
  std::optional<DType> topk_indices_dtype{};  ///< absent: any dtype, or one internal to the library
  bool output_is_reduced = false;             ///< finalize has summed over all ranks

  friend bool operator==(const All2AllProperties&, const All2AllProperties&) = default;
};

/// pplx uses u32 ids, which are i32 here.
/// Errors: kInvalidArgument when `backend` is not one of the values above.
SWITCHYARD_API All2AllProperties properties_of(All2AllBackend backend);

}  // namespace switchyard
