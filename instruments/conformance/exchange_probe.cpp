// SPDX-License-Identifier: Apache-2.0

#include "conformance/exchange_probe.h"

#include <algorithm>
#include <cstring>

#include "switchyard/scale_layout.h"

#include "conformance/exchange_values.h"
#include "core/bytes.h"
#include "core/fail.h"

namespace switchyard::conformance {
namespace {

// Rows of a receive buffer, or more.
std::int64_t max_rows(const ExchangeConfig& config, int num_ranks) {
  const std::int64_t tokens = num_ranks * config.max_tokens_per_rank;
  const std::int64_t local = config.experts_per_rank.empty()
                                 ? (config.num_experts + num_ranks - 1) / num_ranks
                                 : config.num_experts;
  if (config.layout == Layout::kBatched) {
    return local * (config.capacity > 0 ? config.capacity : tokens);
  }
  return tokens * std::max(1, config.num_topk) + local * config.expert_alignment;
}

// Of all that the handles of a case take at a time.
std::size_t arena_bytes(const ExchangeCase& test, int num_ranks) {
  constexpr std::int64_t kFloat = 4;
  constexpr std::int64_t kSmall = 1 << 16;  // single values, and what alignment takes
  constexpr std::int64_t kGap = 8;          // between rows of tokens
  const ExchangeConfig config = test.config();
  const std::int64_t tokens = config.max_tokens_per_rank;
  const std::int64_t row = (config.hidden + kGap) * kFloat;
  std::int64_t inputs = tokens * (2 * row + 5 * 8 * std::max(1, config.num_topk));
  for (const std::int64_t bytes : config.payload_bytes) inputs += tokens * bytes;
  const std::int64_t outputs = tokens * row * (1 + test.num_bias);
  const std::int64_t row_weights = kFloat * config.num_topk;
  const std::int64_t results = max_rows(config, num_ranks) * (row + row_weights);
  const std::int64_t one = inputs + outputs + results + kSmall;
  return checked_mul(static_cast<std::size_t>(one), static_cast<std::size_t>(test.max_in_flight));
}

void expect_alike(const TensorView& got, const TensorView& want) {
  bool is_alike = got.num_dims() == want.num_dims();
  for (int d = 0; is_alike && d < got.num_dims(); ++d) {
    is_alike = got.shape(d) == want.shape(d) &&
               (got.shape(d) <= 1 || want.num_elements() == 0 || got.stride(d) == want.stride(d));
  }
  expect(is_alike, "scales are {}, expected {}, or other strides", got.describe(), want.describe());
}

}  // namespace

struct ExchangeProbe::Arrived {
  struct Extent {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  std::int64_t num_buffer_rows = 0;
  std::vector<std::int32_t> num_rows;
  std::vector<std::int64_t> first_row;
  std::int32_t total_rows = 0;
  std::vector<Extent> extents;  ///< rows that came
  Tensor rows;
  Tensor scale;  ///< the only one
  OwnedScales scales;
  Tensor topk_ids;
  Tensor topk_weights;
  std::vector<Tensor> payloads;
  std::int32_t num_dropped = 0;
  float tensor_scale = 0.0f;
};

ExchangeProbe::ExchangeProbe(const Group& group, const ExchangeCase& test, Device device,
                             Tamper tamper)
    : config_(test.config()),
      host_counts_(!test.worst_case_rows || test.seed % 2 == 1),
      tamper_(std::move(tamper)),
      arena_(device, device.is_cpu() ? 0 : arena_bytes(test, group.size())),
      copies_inputs_(device.is_cpu() && test.seed % 2 == 0),
      exchange_(group, config_,
                {.device = device,
                 .timeout_ms = device.is_cpu() ? 0 : group.timeout_ms(),
                 .exact_memory = test.seed % 4 == 0,
                 .keeps_routing = test.keeps_routing}) {}

void ExchangeProbe::begin() {
  if (num_alive_ == 0) arena_.clear();
  if (num_alive_ == 0) lent_.clear();
  ++num_alive_;
}

// The rows for a send phase, until take_back().
TensorView ExchangeProbe::lend(const TensorView& rows) {
  if (!copies_inputs_) return arena_.in(rows);
  std::vector<std::byte>& bytes = lent_.emplace_back(span_bytes(rows) + 1);
  if (bytes.size() > 1) std::memcpy(bytes.data(), rows.data(), bytes.size() - 1);
  return TensorView(bytes.data(), rows.dtype(), {rows.shape(0), rows.shape(1)},
                    {rows.stride(0), rows.stride(1)});
}

void ExchangeProbe::take_back() {
  if (copies_inputs_) std::fill(lent_.back().begin(), lent_.back().end(), std::byte{0xA5});
}

DispatchOptions ExchangeProbe::in(const DispatchOptions& options) {
  DispatchOptions result = options;
  result.scales = arena_.in(options.scales);
  result.tensor_scale = arena_.in(options.tensor_scale);
  for (TensorView& payload : result.payloads) payload = arena_.in(payload);
  result.host_counts = host_counts_;
  result.copies_inputs = copies_inputs_;
  return result;
}

CombineOptions ExchangeProbe::in(const CombineOptions& options) {
  CombineOptions result = options;
  result.topk_weights = arena_.in(options.topk_weights);
  for (TensorView& bias : result.bias) bias = arena_.in(bias);
  result.shared = arena_.in(options.shared);
  result.returned_weights = arena_.out(options.returned_weights);
  return result;
}

// ---- dispatch ----------------------------------------------------------------------------------

DispatchHandle ExchangeProbe::dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                            const TensorView& topk_weights,
                                            const DispatchOptions& options) {
  begin();
  const DispatchHandle handle = exchange_.dispatch_send(
      lend(tokens), arena_.in(topk_ids), arena_.in(topk_weights), arena_.stream(), in(options));
  take_back();
  return handle;
}

DispatchHandle ExchangeProbe::dispatch_again_send(const DispatchHandle& earlier,
                                                  const TensorView& tokens,
                                                  const TensorView& topk_weights,
                                                  const DispatchOptions& options) {
  begin();
  const DispatchHandle handle = exchange_.dispatch_again_send(
      earlier, lend(tokens), arena_.in(topk_weights), arena_.stream(), in(options));
  take_back();
  return handle;
}

Received ExchangeProbe::dispatch_receive(const DispatchHandle& handle) {
  return received(exchange_.dispatch_receive(handle, arena_.stream()));
}

Received ExchangeProbe::dispatch(const TensorView& tokens, const TensorView& topk_ids,
                                 const TensorView& topk_weights, const DispatchOptions& options) {
  begin();
  return received(exchange_.dispatch(arena_.in(tokens), arena_.in(topk_ids),
                                     arena_.in(topk_weights), arena_.stream(), in(options)));
}

Received ExchangeProbe::dispatch_again(const DispatchHandle& earlier, const TensorView& tokens,
                                       const TensorView& topk_weights,
                                       const DispatchOptions& options) {
  begin();
  return received(exchange_.dispatch_again(earlier, arena_.in(tokens), arena_.in(topk_weights),
                                           arena_.stream(), in(options)));
}

DispatchHandle ExchangeProbe::reopen(const DispatchHandle& earlier) {
  begin();
  const DispatchHandle handle = exchange_.reopen(earlier, arena_.stream());
  // Copies from ordinary memory behind a kernel that waits keep threads that share its GPU out of
  // CUDA, peers among them.
  if (exchange_.is_shared_gpu()) arena_.finish();
  return handle;
}

// ---- what came ---------------------------------------------------------------------------------

Received ExchangeProbe::received(const Dispatched& got) {
  Received result;
  result.handle = got.handle;
  if (arena_.device().is_cpu()) {
    result.rows = got;
    result.origins = exchange_.row_origins(got.handle);
  } else {
    arena_.finish();
    exchange_.check();
    copy_to_host(got, result);
  }
  if (tamper_.received) tamper_.received(result);
  return result;
}

void ExchangeProbe::copy_to_host(const Dispatched& got, Received& to) {
  to.is_from_gpu = true;
  const auto arrived = std::make_shared<Arrived>();
  copy_counts(got, *arrived);
  find_extents(got, *arrived);
  copy_rows(got, *arrived);
  copy_scales(got, *arrived);
  copy_routing(got, *arrived);
  to.memory = arrived;
  ExpertRows& experts = to.rows.experts;
  experts.rows = arrived->rows;
  if (got.experts.scales.has_value()) {
    experts.scales = arrived->scale.view().has_value() ? arrived->scale : arrived->scales.view;
  }
  experts.scheme = got.experts.scheme;
  experts.scale_layout = got.experts.scale_layout;
  const auto num_local = static_cast<std::int64_t>(arrived->num_rows.size());
  experts.num_rows = TensorView::of(arrived->num_rows.data(), {num_local});
  if (got.experts.first_row.has_value()) {
    experts.first_row = TensorView::of(arrived->first_row.data(), {num_local});
  }
  if (got.experts.tensor_scale.has_value()) {
    experts.tensor_scale = TensorView::of(&arrived->tensor_scale, {1});
  }
  to.rows.total_rows = TensorView::of(&arrived->total_rows, {1});
  if (got.num_dropped.has_value()) {
    to.rows.num_dropped = TensorView::of(&arrived->num_dropped, {1});
  }
  for (const Tensor& payload : arrived->payloads) to.rows.payloads.push_back(payload);
  if (got.topk_ids.has_value()) to.rows.topk_ids = arrived->topk_ids;
  if (got.topk_weights.has_value()) to.rows.topk_weights = arrived->topk_weights;
  to.rows.host = got.host;
}

void ExchangeProbe::copy_counts(const Dispatched& got, Arrived& to) {
  const TensorView& rows = got.experts.rows;
  to.num_buffer_rows = rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1) : rows.shape(0);
  to.num_rows.resize(static_cast<std::size_t>(got.experts.num_rows.num_elements()));
  arena_.copy_out(got.experts.num_rows, to.num_rows.data());
  arena_.copy_out(got.total_rows, &to.total_rows);
  if (got.num_dropped.has_value()) arena_.copy_out(got.num_dropped, &to.num_dropped);
  if (got.experts.tensor_scale.has_value()) {
    arena_.copy_out(got.experts.tensor_scale, &to.tensor_scale);
  }
  if (!got.experts.first_row.has_value()) return;
  to.first_row.resize(static_cast<std::size_t>(got.experts.first_row.num_elements()));
  arena_.copy_out(got.experts.first_row, to.first_row.data());
}

// Rows with a token. By rank only their ids tell which they are.
void ExchangeProbe::find_extents(const Dispatched& got, Arrived& to) {
  if (config_.layout == Layout::kByRank) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(got.topk_ids.num_elements()));
    arena_.copy_out(got.topk_ids, ids.data());
    const auto is_none = [](std::int32_t id) { return id < 0; };
    for (std::int64_t row = 0; row < to.num_buffer_rows; ++row) {
      const auto first = ids.begin() + row * config_.num_topk;
      if (!std::all_of(first, first + config_.num_topk, is_none)) to.extents.push_back({row, 1});
    }
  } else if (got.experts.first_row.has_value()) {
    for (std::size_t e = 0; e < to.first_row.size(); ++e) {
      to.extents.push_back({to.first_row[e], to.num_rows[e]});
    }
  } else {
    to.extents.push_back({0, to.total_rows});
  }
  for (const auto& extent : to.extents) {
    expect(
        extent.first >= 0 && extent.count >= 0 && extent.first + extent.count <= to.num_buffer_rows,
        "rows {} to {} of a buffer of {}", extent.first, extent.first + extent.count,
        to.num_buffer_rows);
  }
  // Then what lies between is promised too.
  if (config_.zero_padding) to.extents = {{0, to.num_buffer_rows}};
}

template <typename Extents>
void ExchangeProbe::copy_extents(const Extents& extents, const TensorView& from, void* to,
                                 std::size_t row_bytes) const {
  for (const auto& extent : extents) {
    const std::size_t first = static_cast<std::size_t>(extent.first) * row_bytes;
    const std::size_t bytes = static_cast<std::size_t>(extent.count) * row_bytes;
    if (bytes == 0) continue;
    const TensorView part(from.as<std::byte>() + first, DType::kU8,
                          {static_cast<std::int64_t>(bytes)}, from.device());
    arena_.copy_out(part, static_cast<std::byte*>(to) + first);
  }
}

void ExchangeProbe::copy_rows(const Dispatched& got, Arrived& to) {
  to.rows = poisoned(got.experts.rows.dtype(), to.num_buffer_rows, config_.hidden);
  copy_extents(to.extents, got.experts.rows, to.rows.data(),
               element_row_bytes(config_.scheme, config_.hidden));
  for (const TensorView& payload : got.payloads) {
    to.payloads.push_back(poisoned(payload.dtype(), payload.shape(0), payload.shape(1)));
    copy_extents(to.extents, payload, to.payloads.back().data(),
                 static_cast<std::size_t>(payload.shape(1)));
  }
}

void ExchangeProbe::copy_scales(const Dispatched& got, Arrived& to) {
  if (!got.experts.scales.has_value()) return;
  if (config_.scheme.group == ScaleGroup::kTensor) {
    to.scale = Tensor(DType::kF32, {1});
    return arena_.copy_out(got.experts.scales, to.scale.data());
  }
  const bool is_batched = config_.layout == Layout::kBatched;
  const std::int64_t num = num_scales(config_.scheme, config_.hidden);
  const DType dtype = scale_dtype(config_.scheme);
  const std::int64_t block = is_batched ? got.experts.rows.shape(1) : to.num_buffer_rows;
  to.scales = is_batched ? make_batched_scales(dtype, config_.scale_layout,
                                               got.experts.rows.shape(0), block, num)
                         : make_scales(dtype, config_.scale_layout, to.num_buffer_rows, num);
  expect_alike(got.experts.scales, to.scales.view);
  std::vector<std::byte> all(span_bytes(got.experts.scales));
  arena_.copy_out(got.experts.scales, all.data());
  if (config_.zero_padding) {
    std::copy(all.begin(), all.end(), to.scales.memory.as<std::byte>());
    return;
  }
  const auto unit = static_cast<std::size_t>(bits_of(dtype) / 8);
  for (const auto& extent : to.extents) {
    for (std::int64_t row = extent.first; row < extent.first + extent.count; ++row) {
      for (std::int64_t s = 0; s < num; ++s) {
        const auto offset =
            static_cast<std::size_t>(scale_index(config_.scale_layout, block, num, row, s)) * unit;
        std::memcpy(to.scales.memory.as<std::byte>() + offset, all.data() + offset, unit);
      }
    }
  }
}

// Rows without a token have what Exchange writes there; where it is promised, as it came.
void ExchangeProbe::copy_routing(const Dispatched& got, Arrived& to) {
  const std::int64_t rows = to.num_buffer_rows;
  const bool is_whole = config_.layout == Layout::kByRank || config_.layout == Layout::kAllGather;
  const auto extents = is_whole ? std::vector<Arrived::Extent>{{0, rows}} : to.extents;
  constexpr std::size_t kBytes = 4;
  if (got.topk_ids.has_value()) {
    const std::int64_t columns = got.topk_ids.shape(1);
    to.topk_ids = Tensor(DType::kI32, {rows, columns});
    std::fill_n(to.topk_ids.as<std::int32_t>(), rows * columns, -1);
    copy_extents(extents, got.topk_ids, to.topk_ids.data(),
                 kBytes * static_cast<std::size_t>(columns));
  }
  if (got.topk_weights.has_value()) {
    const bool is_flat = got.topk_weights.num_dims() == 1;
    const std::int64_t columns = is_flat ? 1 : got.topk_weights.shape(1);
    to.topk_weights = is_flat ? Tensor(DType::kF32, {rows}) : Tensor(DType::kF32, {rows, columns});
    copy_extents(extents, got.topk_weights, to.topk_weights.data(),
                 kBytes * static_cast<std::size_t>(columns));
  }
}

// ---- combine -----------------------------------------------------------------------------------

void ExchangeProbe::combine_send(const DispatchHandle& handle, const TensorView& rows,
                                 const TensorView& row_weights) {
  exchange_.combine_send(handle, lend(rows), arena_.stream(),
                         {.row_weights = arena_.in(row_weights), .copies_inputs = copies_inputs_});
  take_back();
}

void ExchangeProbe::combine_receive(const DispatchHandle& handle, const TensorView& output,
                                    const CombineOptions& options) {
  exchange_.combine_receive(handle, arena_.out(output), arena_.stream(), in(options));
  finish(output, options.returned_weights);
}

void ExchangeProbe::combine(const DispatchHandle& handle, const TensorView& rows,
                            const TensorView& output, const CombineOptions& options,
                            const TensorView& row_weights) {
  if (copies_inputs_) {
    combine_send(handle, rows, row_weights);
    return combine_receive(handle, output, options);
  }
  CombineOptions all = in(options);
  all.row_weights = arena_.in(row_weights);
  exchange_.combine(handle, arena_.in(rows), arena_.out(output), arena_.stream(), all);
  finish(output, options.returned_weights);
}

void ExchangeProbe::release(const DispatchHandle& handle) {
  exchange_.release(handle);
  --num_alive_;
}

void ExchangeProbe::finish(const TensorView& output, const TensorView& returned) {
  arena_.finish();
  exchange_.check();
  --num_alive_;
  if (tamper_.combined) tamper_.combined(output, returned);
}

}  // namespace switchyard::conformance
