// SPDX-License-Identifier: Apache-2.0
//
// compat_rows.h: what the compat library, which is linked against the exported functions of this
// one, needs of GPUs besides the public functions. In no public header; not for other users.
//
// Every function is ordered in a stream of a GPU, waits for nothing and may be captured in a CUDA
// graph. On CPUs the compat library works on the values themselves.
#pragma once

#include <memory>

#include "switchyard/export.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "cuda/compat/compat_rows.h"
#include "cuda/experts/layer_rows.h"

namespace switchyard::on_gpu {

/// A CUDA event that stands behind everything in the stream so far.
SWITCHYARD_API std::shared_ptr<void> record_event(Stream stream);
/// What comes next in the stream waits for the event.
SWITCHYARD_API void wait_event(const std::shared_ptr<void>& event, Stream stream);

/// Contiguous tensors of equal size.
SWITCHYARD_API void copy(const TensorView& from, const TensorView& to, Stream stream);
/// Every byte of a contiguous tensor.
SWITCHYARD_API void fill(const TensorView& tensor, int byte, Stream stream);

SWITCHYARD_API void rename_ids(const cuda::RenameIdsArgs& args, Stream stream);
SWITCHYARD_API void fill_tails(const cuda::FillTailsArgs& args, Stream stream);
SWITCHYARD_API void find_row_segments(const cuda::RowSegmentsArgs& args, Stream stream);
SWITCHYARD_API void mask_weights(const cuda::MaskWeightsArgs& args, Stream stream);
SWITCHYARD_API void running_sums(const cuda::RunningSumsArgs& args, Stream stream);
SWITCHYARD_API void count_sent_tokens(const cuda::SentTokensArgs& args, Stream stream);

}  // namespace switchyard::on_gpu
