// SPDX-License-Identifier: Apache-2.0

#include "device/compat_rows.h"

#include "device/cuda_module.h"

namespace switchyard::on_gpu {

std::shared_ptr<void> record_event(Stream stream) { return cuda_module().record_event(stream); }

void wait_event(const std::shared_ptr<void>& event, Stream stream) {
  cuda_module().wait_event(event.get(), stream);
}

void copy(const TensorView& from, const TensorView& to, Stream stream) {
  if (from.num_bytes() > 0) cuda_module().copy(to.data(), from.data(), from.num_bytes(), stream);
}

void fill(const TensorView& tensor, int byte, Stream stream) {
  if (tensor.num_bytes() > 0) cuda_module().fill(tensor.data(), byte, tensor.num_bytes(), stream);
}

void rename_ids(const cuda::RenameIdsArgs& args, Stream stream) {
  cuda_module().rename_ids(args, stream);
}
void fill_tails(const cuda::FillTailsArgs& args, Stream stream) {
  cuda_module().fill_tails(args, stream);
}
void find_row_segments(const cuda::RowSegmentsArgs& args, Stream stream) {
  cuda_module().find_row_segments(args, stream);
}
void mask_weights(const cuda::MaskWeightsArgs& args, Stream stream) {
  cuda_module().mask_weights(args, stream);
}
void running_sums(const cuda::RunningSumsArgs& args, Stream stream) {
  cuda_module().running_sums(args, stream);
}
void count_sent_tokens(const cuda::SentTokensArgs& args, Stream stream) {
  cuda_module().count_sent_tokens(args, stream);
}

}  // namespace switchyard::on_gpu
