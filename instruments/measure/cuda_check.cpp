// SPDX-License-Identifier: Apache-2.0
//
// Copies one iteration that is not timed to host memory and checks it there. Buffers have their
// largest size on both sides; only received rows, and all scales, are copied.

#include <algorithm>

#include "switchyard/scale_layout.h"

#include "measure/bench_oracle.h"
#include "measure/cuda_run.h"
#include "quant/scheme.h"

namespace switchyard::measure {
namespace {

struct Extent {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Returns zeroed host memory with the size in bytes of a device tensor.
Tensor host_of(const TensorView& view) {
  return Tensor(DType::kU8, {static_cast<std::int64_t>(view.num_bytes())});
}

template <typename T>
std::vector<T> download(DeviceMeter& meter, const TensorView& view) {
  std::vector<T> values(static_cast<std::size_t>(view.num_elements()));
  if (!values.empty()) meter.queue().copy(values.data(), view.data(), values.size() * sizeof(T));
  return values;
}

// Where received rows are; counts that cannot be are cut to the buffer, and found wrong elsewhere.
std::vector<Extent> extents_of(DeviceMeter& meter, Layout layout, const Dispatched& got,
                               std::int64_t num_buffer_rows) {
  std::vector<Extent> extents;
  if (got.experts.first_row.has_value()) {
    const auto first = download<std::int64_t>(meter, got.experts.first_row);
    const auto count = download<std::int32_t>(meter, got.experts.num_rows);
    for (std::size_t e = 0; e < first.size(); ++e) extents.push_back({first[e], count[e]});
  } else if (layout == Layout::kByRank) {  // a slot for every token that may arrive
    extents.push_back({0, num_buffer_rows});
  } else {
    extents.push_back({0, download<std::int32_t>(meter, got.total_rows).at(0)});
  }
  for (Extent& extent : extents) {
    extent.first = std::clamp<std::int64_t>(extent.first, 0, num_buffer_rows);
    extent.count = std::clamp<std::int64_t>(extent.count, 0, num_buffer_rows - extent.first);
  }
  return extents;
}

void copy_rows(DeviceMeter& meter, void* to, const void* from, std::size_t row_bytes,
               const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    const std::size_t at = static_cast<std::size_t>(extent.first) * row_bytes;
    const std::size_t bytes = static_cast<std::size_t>(extent.count) * row_bytes;
    if (bytes == 0) continue;
    meter.queue().copy(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                       bytes);
  }
}

std::size_t row_bytes_of(const TensorView& view, std::int64_t num_rows) {
  return num_rows == 0 ? 0 : view.num_bytes() / static_cast<std::size_t>(num_rows);
}

// As they lie on the GPU; of row-major ones, those of the rows in `extents`.
OwnedScales host_scales(DeviceMeter& meter, const BenchShape& shape, const ExpertRows& experts,
                        std::int64_t num_rows, const std::vector<Extent>& extents) {
  const TensorView& from = experts.scales;
  if (!from.has_value()) return {};
  OwnedScales to;
  if (has_row_scales(shape.scheme) && shape.scale_layout == ScaleLayout::kRowMajor) {
    to.memory = host_of(from);
    to.view = to.memory;
    copy_rows(meter, to.memory.data(), from.data(), row_bytes_of(from, num_rows), extents);
    return to;
  }
  if (!has_row_scales(shape.scheme)) {
    to.memory = Tensor(from.dtype(), {from.num_elements()});
    to.view = to.memory;
  } else {
    const std::int64_t in_row = num_scales(shape.scheme, shape.workload.hidden);
    const TensorView& rows = experts.rows;
    to = shape.layout == Layout::kBatched
             ? make_batched_scales(from.dtype(), shape.scale_layout, rows.shape(0), rows.shape(1),
                                   in_row)
             : make_scales(from.dtype(), shape.scale_layout, rows.shape(0), in_row);
  }
  meter.queue().copy(to.memory.data(), from.data(), to.memory.view().num_bytes());
  return to;
}

}  // namespace

std::int64_t CudaRun::count_wrong(std::int64_t iteration) {
  const DeviceInput input = upload(batch_, iteration, meter_.queue());
  poison_output();
  const BenchOracle oracle(shape_, iteration, group_.rank());
  Dispatched got;
  meter_.run([&](Stream stream) { got = dispatch(input, stream); });
  exchange_.check();

  const std::vector<Extent> extents = extents_of(meter_, shape_.layout, got, num_rows_);
  const Tensor rows = host_of(got.experts.rows);
  copy_rows(meter_, rows.data(), got.experts.rows.data(), row_bytes_of(got.experts.rows, num_rows_),
            extents);
  const OwnedScales scales = host_scales(meter_, shape_, got.experts, num_rows_, extents);
  std::int64_t wrong = oracle.count_wrong_received(
      rows, scales.view, download<std::int32_t>(meter_, got.experts.num_rows));

  const Tensor results = oracle.results(num_rows_);
  copy_rows(meter_, results_of(got.handle).data(), results.data(), row_bytes_of(results, num_rows_),
            extents);
  meter_.run([&](Stream stream) { combine(got.handle, stream); });
  exchange_.check();
  const Tensor output(DType::kBF16, {shape_.num_tokens, shape_.workload.hidden});
  meter_.queue().copy(output.data(), output_.get(), output.view().num_bytes());
  wrong += oracle.count_wrong_output(output);
  return wrong;
}

}  // namespace switchyard::measure
