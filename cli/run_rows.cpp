// SPDX-License-Identifier: Apache-2.0

#include "run_rows.h"

#include <cstring>

#include "quant/scheme.h"

namespace switchyard::cli {
namespace {

std::span<const std::byte> row_of(const TensorView& matrix, std::int64_t row, std::size_t bytes) {
  return {matrix.as<std::byte>() + static_cast<std::size_t>(row) * bytes, bytes};
}

}  // namespace

std::uint64_t digest_of(std::span<const std::byte> bytes) {
  std::uint64_t digest = 0xCBF29CE484222325u;
  for (const std::byte byte : bytes) {
    digest = (digest ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3u;
  }
  return digest;
}

std::vector<ReceivedRow> describe_rows(const ServedRows& served, std::int64_t hidden,
                                       int micro_batch) {
  const ExpertRows& experts = served.experts;
  const QuantScheme& scheme = experts.scheme;
  const TensorView& rows = experts.rows;
  const std::int64_t buffer_rows =
      rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1) : rows.shape(0);
  const std::size_t element_bytes = row_bytes(scheme, hidden);
  const std::size_t scale_bytes = has_row_scales(scheme) ? scale_row_bytes(scheme, hidden) : 0;
  std::vector<ReceivedRow> described;
  std::vector<std::byte> scales(scale_bytes + sizeof(float));
  for (const RowOrigin& origin : served.origins) {
    ReceivedRow row{.place = origin.row,
                    .buffer_rows = buffer_rows,
                    .token = origin.token,
                    .micro_batch = micro_batch,
                    .expert = origin.expert,
                    .source = origin.rank,
                    .k = origin.k};
    row.codes = digest_of(row_of(rows, origin.row, element_bytes));
    std::size_t used = scale_bytes;
    if (scale_bytes > 0) {
      std::memcpy(scales.data(), row_of(experts.scales, origin.row, scale_bytes).data(),
                  scale_bytes);
    }
    const bool has_one = scheme.group == ScaleGroup::kTensor;
    const TensorView& whole = has_one ? experts.scales : experts.tensor_scale;
    if (whole.has_value() && (has_one || scheme.needs_tensor_scale())) {
      std::memcpy(scales.data() + used, whole.data(), sizeof(float));
      used += sizeof(float);
    }
    row.scales = digest_of({scales.data(), used});
    described.push_back(row);
  }
  return described;
}

}  // namespace switchyard::cli
