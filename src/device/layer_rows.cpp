// SPDX-License-Identifier: Apache-2.0

#include "device/layer_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "switchyard/router.h"

#include "core/fail.h"
#include "cpu/weigh_reduce.h"
#include "device/cuda_module.h"
#include "plan/permute_views.h"
#include "quant/bf16.h"
#include "quant/exp.h"
#include "quant/f16.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

std::int64_t row_bytes_of(const TensorView& rows) {
  return rows.shape(rows.num_dims() - 1) * bits_of(rows.dtype()) / 8;
}

ByteRows byte_rows_of(const TensorView& rows, std::int64_t num_rows) {
  const std::int64_t bytes = row_bytes_of(rows);
  return {rows.as<std::byte>(), num_rows, static_cast<std::size_t>(bytes), bytes};
}

void store_id(const IdTable& to, std::int64_t t, std::int64_t k, std::int64_t id) {
  const std::int64_t at = t * to.token_stride + k * to.choice_stride;
  auto* ids = const_cast<void*>(to.data);
  if (to.is_64_bit) {
    static_cast<std::int64_t*>(ids)[at] = id;
  } else {
    static_cast<std::int32_t*>(ids)[at] = static_cast<std::int32_t>(id);
  }
}

std::int64_t renamed(const cuda::RenameIdsArgs& args, std::int64_t t, std::int64_t k) {
  const std::int64_t id = args.from.at(t, k);
  if (id == -1 || (args.num_rows != nullptr && t >= *args.num_rows)) return args.none;
  const bool is_known = id >= 0 && id < args.num_ids;
  require(is_known || args.table == nullptr, Errc::kInvalidArgument,
          "prepare: topk_ids[{}] is {}, must be -1 or an expert from 0 to {}",
          t * args.from.num_topk + k, id, args.num_ids - 1);
  if (!is_known) return args.invalid;
  return args.table == nullptr ? id + args.offset : args.table[id];
}

void rename_ids_on_host(const cuda::RenameIdsArgs& args) {
  for (std::int64_t t = 0; t < args.from.num_tokens; ++t) {
    for (std::int64_t k = 0; k < args.from.num_topk; ++k)
      store_id(args.to, t, k, renamed(args, t, k));
    if (args.weights == nullptr || args.num_rows == nullptr || t < *args.num_rows) continue;
    std::fill_n(args.weights + t * args.from.num_topk, args.from.num_topk, 0.0f);
  }
}

void mark_rows_on_host(const cuda::MarkRowsArgs& args) {
  std::int64_t end = 0;
  for (std::int32_t e = 0; e < args.num_local; ++e) {
    const std::int64_t count = args.num_rows[e];
    const std::int64_t aligned = (count + args.alignment - 1) / args.alignment * args.alignment;
    args.aligned_counts[e] = static_cast<std::int32_t>(aligned);
    end = std::min(args.m, args.first_row[e] + aligned);
    std::fill(args.ids + args.first_row[e], args.ids + end, std::int64_t{args.first_expert} + e);
    if (args.weights != nullptr && end > args.first_row[e] + count) {
      std::fill(args.weights + args.first_row[e] + count, args.weights + end, 0.0f);
    }
  }
  std::fill(args.ids + end, args.ids + args.m, std::int64_t{-1});
  if (args.weights != nullptr) std::fill(args.weights + end, args.weights + args.m, 0.0f);
  *args.end = static_cast<std::int32_t>(end);
}

float rounded(float value, DType dtype) {
  if (dtype == DType::kBF16) return f32_from_bf16(bf16_from_f32(value));
  if (dtype == DType::kF16) return f32_from_f16(f16_from_f32(value));
  return value;
}

void weigh_rows_on_host(const TensorView& from, const TensorView& weights, const TensorView& to) {
  const std::int64_t width = from.shape(1);
  const std::int64_t row_bytes = row_bytes_of(from);
  const QuantScheme plain{from.dtype()};
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t t = 0; t < from.shape(0); ++t) {
    dequantize_row(plain, from.as<std::byte>() + t * row_bytes, nullptr, from.dtype(), width,
                   row.data());
    const float weight = rounded(weights.as<float>()[t], from.dtype());
    for (float& value : row) value *= weight;
    quantize_row(plain, row.data(), DType::kF32, width, to.as<std::byte>() + t * row_bytes,
                 nullptr);
  }
}

void sum_choices_on_host(const TensorView& rows, const IdTable& ids, const TensorView& weights,
                         const ExpertLookup& lookup, const TensorView& sums) {
  const std::int64_t row_bytes = row_bytes_of(rows);
  std::vector<const void*> summands;
  std::vector<float> factors;
  for (std::int64_t m = 0; m < ids.num_tokens; ++m) {
    summands.clear();
    factors.clear();
    for (std::int64_t k = 0; k < ids.num_topk; ++k) {
      if (lookup.local(ids.at(m, k)) < 0) continue;
      const std::int64_t at = m * ids.num_topk + k;
      summands.push_back(rows.as<std::byte>() + at * row_bytes);
      if (weights.has_value()) factors.push_back(weights.as<float>()[at]);
    }
    weigh_reduce_row(summands.data(), rows.dtype(), weights.has_value() ? factors.data() : nullptr,
                     static_cast<int>(summands.size()), sums.shape(1),
                     sums.as<std::byte>() + m * row_bytes, sums.dtype());
  }
}

void gate_rows_on_host(const TensorView& hidden, const TensorView& gate, const TensorView& weights,
                       const TensorView& rows) {
  const std::int64_t num_tokens = hidden.shape(0);
  const std::int64_t width = hidden.shape(1);
  const TensorView logits(weights.data(), DType::kF32, {num_tokens, 1});
  router_logits(hidden, TensorView(gate.data(), gate.dtype(), {1, width}), logits);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const float scale = sigmoid(logits.as<float>()[t]);
    std::byte* row = rows.as<std::byte>() + t * row_bytes_of(rows);
    const void* const summands[] = {row};
    weigh_reduce_row(summands, rows.dtype(), &scale, 1, width, row, rows.dtype());
  }
}

}  // namespace

void rename_ids(const cuda::RenameIdsArgs& args, Stream stream) {
  if (stream.device().is_cpu()) return rename_ids_on_host(args);
  cuda_module().rename_ids(args, stream);
}

void mark_rows(const cuda::MarkRowsArgs& args, Stream stream) {
  if (stream.device().is_cpu()) return mark_rows_on_host(args);
  cuda_module().mark_rows(args, stream);
}

void weigh_rows(const TensorView& from, const TensorView& weights, const TensorView& to,
                Stream stream) {
  if (stream.device().is_cpu()) return weigh_rows_on_host(from, weights, to);
  cuda_module().weigh_rows(
      {from.data(), to.data(), weights.as<float>(), from.shape(0), from.shape(1), from.dtype()},
      stream);
}

void copy_tensor(const TensorView& from, const TensorView& to, Stream stream) {
  if (from.num_bytes() == 0) return;
  if (stream.device().is_cpu()) {
    std::memcpy(to.data(), from.data(), from.num_bytes());
  } else {
    cuda_module().copy(to.data(), from.data(), from.num_bytes(), stream);
  }
}

void sum_choices(const TensorView& rows, const TensorView& topk_ids, const TensorView& weights,
                 const TensorView& expert_map, const TensorView& sums, Stream stream) {
  const IdTable ids = id_table("finalize", topk_ids);
  const ExpertLookup lookup = expert_lookup("finalize", expert_map);
  if (stream.device().is_cpu()) return sum_choices_on_host(rows, ids, weights, lookup, sums);
  cuda::ReduceArgs args;
  args.sum_source = cuda::SumSource::kContiguous;
  args.ids = ids;
  args.lookup = lookup;
  args.skips_padding = true;
  args.weights = weights.has_value() ? weights.as<float>() : nullptr;
  args.weight_token_stride = ids.num_topk;
  args.weight_choice_stride = 1;
  args.rows = byte_rows_of(rows, ids.num_tokens * ids.num_topk);
  args.out = byte_rows_of(sums, ids.num_tokens);
  args.hidden = sums.shape(1);
  args.row_dtype = rows.dtype();
  args.out_dtype = sums.dtype();
  cuda_module().reduce_rows(args, stream);
}

void gate_rows(const TensorView& hidden, const TensorView& gate, const TensorView& weights,
               const TensorView& rows, Stream stream) {
  if (stream.device().is_cpu()) return gate_rows_on_host(hidden, gate, weights, rows);
  const std::int64_t num_tokens = hidden.shape(0);
  cuda_module().gate_weights({hidden.data(), hidden.shape(1), hidden.dtype(), gate.data(),
                              gate.dtype(), num_tokens, hidden.shape(1), weights.as<float>()},
                             stream);
  cuda::ReduceArgs args;
  args.sum_source = cuda::SumSource::kContiguous;
  args.ids.num_tokens = num_tokens;
  args.ids.num_topk = 1;
  args.weights = weights.as<float>();
  args.weight_token_stride = 1;
  args.rows = byte_rows_of(rows, num_tokens);
  args.out = args.rows;  // each element is read before it is written
  args.hidden = rows.shape(1);
  cuda_module().reduce_rows(args, stream);
}

}  // namespace switchyard
