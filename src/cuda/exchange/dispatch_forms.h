// SPDX-License-Identifier: Apache-2.0
//
// dispatch_forms.h: the dispatch kernels by family, one source file each because they take long to
// compile, and beside each the kernel that makes the same rows for other hosts (host_rows.h).
#pragma once

#include "cuda/exchange/host_rows.h"

namespace switchyard::cuda {

/// Unquantized rows. Tokens of another dtype than scheme.dtype are converted.
void dispatch_plain(const DispatchArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream);
void pack_plain(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream);
/// Tokens that are already codes of the scheme.
void dispatch_stored(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream);
void pack_stored(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream);
/// e4m3 with one scale per 128 elements: scales of every rule, in every format.
void dispatch_fp8_block(const DispatchArgs& args, Phases phases, bool programmatic,
                        cudaStream_t stream);
void pack_fp8_block(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream);
/// One scale per token or per tensor, or int8 blocks.
void dispatch_coarse(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream);
void pack_coarse(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream);
/// nvfp4 and the OCP MX formats.
void dispatch_small_blocks(const DispatchArgs& args, Phases phases, bool programmatic,
                           cudaStream_t stream);
void pack_small_blocks(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream);

}  // namespace switchyard::cuda
