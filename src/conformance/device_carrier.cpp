// SPDX-License-Identifier: Apache-2.0

#include "conformance/device_carrier.h"

#include <algorithm>
#include <cstring>

#include "switchyard/scale_layout.h"

#include "conformance/exchange_values.h"
#include "core/bytes.h"
#include "core/fail.h"
#include "device/cuda_module.h"

namespace switchyard::conformance {
namespace {

// Rows of a receive buffer, or more.
std::int64_t max_rows(const ExchangeConfig& config, int num_ranks) {
  const std::int64_t tokens = num_ranks * config.max_tokens_per_rank;
  const std::int64_t local = (config.num_experts + num_ranks - 1) / num_ranks;
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

struct Extent {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

void expect_alike(const TensorView& got, const TensorView& want) {
  bool is_alike = got.num_dims() == want.num_dims();
  for (int d = 0; is_alike && d < got.num_dims(); ++d) {
    is_alike = got.shape(d) == want.shape(d) &&
               (got.shape(d) <= 1 || want.num_elements() == 0 || got.stride(d) == want.stride(d));
  }
  expect(is_alike, "scales are {}, want {}, or other strides", got.describe(), want.describe());
}

}  // namespace

struct DeviceCarrier::Arrived {
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
};

DeviceCarrier::DeviceCarrier(const Group& group, const ExchangeCase& test)
    : config_(test.config()),
      queue_(cuda_module().make_queue(group.rank())),
      arena_(*queue_, arena_bytes(test, group.size())),
      exchange_(group, config_,
                {.timeout_ms = group.timeout_ms(), .keeps_routing = test.keeps_routing}) {}

int DeviceCarrier::keep(const DispatchHandle& handle, const DispatchOptions& options) {
  sent_.push_back({handle, options.tensor_scale});
  return static_cast<int>(sent_.size()) - 1;
}

void DeviceCarrier::begin() {
  if (num_alive_ == 0) arena_.clear();
  ++num_alive_;
}

DispatchOptions DeviceCarrier::up(const DispatchOptions& options) {
  DispatchOptions result;
  result.scales = arena_.up(options.scales);
  result.tensor_scale = arena_.up(options.tensor_scale);
  for (const TensorView& payload : options.payloads) result.payloads.push_back(arena_.up(payload));
  result.max_tokens = options.max_tokens;
  result.routing_only = options.routing_only;
  return result;
}

CombineOptions DeviceCarrier::up(const CombineOptions& options) {
  CombineOptions result;
  result.topk_weights = arena_.up(options.topk_weights);
  for (const TensorView& bias : options.bias) result.bias.push_back(arena_.up(bias));
  result.returned_weights = arena_.up(options.returned_weights);
  return result;
}

// ---- dispatch ----------------------------------------------------------------------------------

int DeviceCarrier::dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                 const TensorView& topk_weights, const DispatchOptions& options) {
  begin();
  const TensorView x = arena_.up(tokens);
  const TensorView ids = arena_.up(topk_ids);
  const TensorView weights = arena_.up(topk_weights);
  return keep(exchange_.dispatch_send(x, ids, weights, queue_->stream(), up(options)), options);
}

Received DeviceCarrier::dispatch_receive(int handle) {
  return copy_to_host(handle, exchange_.dispatch_receive(at(handle).handle, queue_->stream()));
}

Received DeviceCarrier::dispatch(const TensorView& tokens, const TensorView& topk_ids,
                                 const TensorView& topk_weights, const DispatchOptions& options) {
  begin();
  const TensorView x = arena_.up(tokens);
  const TensorView ids = arena_.up(topk_ids);
  const TensorView weights = arena_.up(topk_weights);
  const Dispatched got = exchange_.dispatch(x, ids, weights, queue_->stream(), up(options));
  return copy_to_host(keep(got.handle, options), got);
}

int DeviceCarrier::dispatch_again_send(int earlier, const TensorView& tokens,
                                       const TensorView& topk_weights,
                                       const DispatchOptions& options) {
  begin();
  const TensorView x = arena_.up(tokens);
  const TensorView weights = arena_.up(topk_weights);
  return keep(
      exchange_.dispatch_again_send(at(earlier).handle, x, weights, queue_->stream(), up(options)),
      options);
}

Received DeviceCarrier::dispatch_again(int earlier, const TensorView& tokens,
                                       const TensorView& topk_weights,
                                       const DispatchOptions& options) {
  begin();
  const TensorView x = arena_.up(tokens);
  const TensorView weights = arena_.up(topk_weights);
  const Dispatched got =
      exchange_.dispatch_again(at(earlier).handle, x, weights, queue_->stream(), up(options));
  return copy_to_host(keep(got.handle, options), got);
}

int DeviceCarrier::reopen(int earlier) {
  begin();
  return keep(exchange_.reopen(at(earlier).handle, queue_->stream()), {});
}

// ---- what came ---------------------------------------------------------------------------------

Received DeviceCarrier::copy_to_host(int handle, const Dispatched& got) {
  queue_->wait();
  exchange_.check();
  const auto arrived = std::make_shared<Arrived>();
  bring_counts(got, *arrived);
  find_extents(got, *arrived);
  bring_rows(got, *arrived);
  bring_scales(got, *arrived);
  bring_routing(got, *arrived);
  Received result;
  result.handle = handle;
  result.has_host_facts = false;
  result.memory = arrived;
  ExpertRows& experts = result.rows.experts;
  experts.rows = arrived->rows;
  if (got.scales.has_value()) {
    experts.scales = arrived->scale.view().has_value() ? arrived->scale : arrived->scales.view;
  }
  experts.scheme = config_.scheme;
  experts.scale_layout = config_.scale_layout;
  experts.num_rows = arrived->num_rows;
  experts.first_row = arrived->first_row;
  // The caller has it: nothing travels.
  if (config_.scheme.needs_tensor_scale()) experts.tensor_scale = at(handle).tensor_scale;
  result.rows.num_rows = arrived->total_rows;
  result.rows.num_dropped = arrived->num_dropped;
  for (const Tensor& payload : arrived->payloads) result.rows.payloads.push_back(payload);
  if (got.topk_ids.has_value()) result.rows.topk_ids = arrived->topk_ids;
  if (got.topk_weights.has_value()) result.rows.topk_weights = arrived->topk_weights;
  return result;
}

void DeviceCarrier::bring_counts(const Dispatched& got, Arrived& to) {
  const TensorView& rows = got.rows;
  to.num_buffer_rows = rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1) : rows.shape(0);
  to.num_rows.resize(static_cast<std::size_t>(got.num_rows.num_elements()));
  arena_.down(got.num_rows, to.num_rows.data());
  arena_.down(got.total_rows, &to.total_rows);
  if (got.num_dropped.has_value()) arena_.down(got.num_dropped, &to.num_dropped);
  if (!got.first_row.has_value()) return;
  to.first_row.resize(static_cast<std::size_t>(got.first_row.num_elements()));
  arena_.down(got.first_row, to.first_row.data());
}

// Rows with a token. By rank only their ids tell which they are.
void DeviceCarrier::find_extents(const Dispatched& got, Arrived& to) {
  if (config_.layout == Layout::kByRank) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(got.topk_ids.num_elements()));
    arena_.down(got.topk_ids, ids.data());
    const auto is_none = [](std::int32_t id) { return id < 0; };
    for (std::int64_t row = 0; row < to.num_buffer_rows; ++row) {
      const auto first = ids.begin() + row * config_.num_topk;
      if (!std::all_of(first, first + config_.num_topk, is_none)) to.extents.push_back({row, 1});
    }
  } else if (got.first_row.has_value()) {
    for (std::size_t e = 0; e < to.first_row.size(); ++e) {
      to.extents.push_back({to.first_row[e], to.num_rows[e]});
    }
  } else {
    to.extents.push_back({0, to.total_rows});
  }
  for (const Extent& extent : to.extents) {
    expect(
        extent.first >= 0 && extent.count >= 0 && extent.first + extent.count <= to.num_buffer_rows,
        "rows {} to {} of a buffer of {}", extent.first, extent.first + extent.count,
        to.num_buffer_rows);
  }
  // Then what lies between is promised too.
  if (config_.zero_padding) to.extents = {{0, to.num_buffer_rows}};
}

template <typename Extents>
void DeviceCarrier::copy_rows(const Extents& extents, const TensorView& from, void* to,
                              std::size_t row_bytes) {
  for (const Extent& extent : extents) {
    const std::size_t first = static_cast<std::size_t>(extent.first) * row_bytes;
    const std::size_t bytes = static_cast<std::size_t>(extent.count) * row_bytes;
    if (bytes == 0) continue;
    queue_->copy(static_cast<std::byte*>(to) + first, from.as<std::byte>() + first, bytes);
  }
}

void DeviceCarrier::bring_rows(const Dispatched& got, Arrived& to) {
  to.rows = poisoned(got.rows.dtype(), to.num_buffer_rows, config_.hidden);
  copy_rows(to.extents, got.rows, to.rows.data(),
            element_row_bytes(config_.scheme, config_.hidden));
  for (const TensorView& payload : got.payloads) {
    to.payloads.push_back(poisoned(payload.dtype(), payload.shape(0), payload.shape(1)));
    copy_rows(to.extents, payload, to.payloads.back().data(),
              static_cast<std::size_t>(payload.shape(1)));
  }
}

void DeviceCarrier::bring_scales(const Dispatched& got, Arrived& to) {
  if (!got.scales.has_value()) return;
  if (config_.scheme.group == ScaleGroup::kTensor) {
    to.scale = Tensor(DType::kF32, {1});
    return arena_.down(got.scales, to.scale.data());
  }
  const bool is_batched = config_.layout == Layout::kBatched;
  const std::int64_t num = num_scales(config_.scheme, config_.hidden);
  const DType dtype = scale_dtype(config_.scheme);
  const std::int64_t block = is_batched ? got.rows.shape(1) : to.num_buffer_rows;
  const bool has_blocks = is_batched && config_.scale_layout != ScaleLayout::kRowMajor;
  to.scales = has_blocks
                  ? make_batched_scales(dtype, config_.scale_layout, got.rows.shape(0), block, num)
                  : make_scales(dtype, config_.scale_layout, to.num_buffer_rows, num);
  expect_alike(got.scales, to.scales.view);
  std::vector<std::byte> all(span_bytes(got.scales));
  arena_.down(got.scales, all.data());
  if (config_.zero_padding) {
    std::copy(all.begin(), all.end(), to.scales.memory.as<std::byte>());
    return;
  }
  const auto unit = static_cast<std::size_t>(bits_of(dtype) / 8);
  for (const Extent& extent : to.extents) {
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
void DeviceCarrier::bring_routing(const Dispatched& got, Arrived& to) {
  const std::int64_t rows = to.num_buffer_rows;
  const bool is_whole = config_.layout == Layout::kByRank || config_.layout == Layout::kAllGather;
  const std::vector<Extent> extents = is_whole ? std::vector<Extent>{{0, rows}} : to.extents;
  constexpr std::size_t kBytes = 4;
  if (got.topk_ids.has_value()) {
    const std::int64_t columns = got.topk_ids.shape(1);
    to.topk_ids = Tensor(DType::kI32, {rows, columns});
    std::fill_n(to.topk_ids.as<std::int32_t>(), rows * columns, -1);
    copy_rows(extents, got.topk_ids, to.topk_ids.data(),
              kBytes * static_cast<std::size_t>(columns));
  }
  if (got.topk_weights.has_value()) {
    const bool is_flat = got.topk_weights.num_dims() == 1;
    const std::int64_t columns = is_flat ? 1 : got.topk_weights.shape(1);
    to.topk_weights = is_flat ? Tensor(DType::kF32, {rows}) : Tensor(DType::kF32, {rows, columns});
    copy_rows(extents, got.topk_weights, to.topk_weights.data(),
              kBytes * static_cast<std::size_t>(columns));
  }
}

// ---- combine -----------------------------------------------------------------------------------

void DeviceCarrier::combine_send(int handle, const TensorView& rows,
                                 const TensorView& row_weights) {
  const TensorView results = arena_.up(rows);
  exchange_.combine_send(at(handle).handle, results, queue_->stream(),
                         {.row_weights = arena_.up(row_weights)});
}

void DeviceCarrier::combine_receive(int handle, const TensorView& output,
                                    const CombineOptions& options) {
  const TensorView on_gpu = arena_.up(output);
  const CombineOptions device_options = up(options);
  exchange_.combine_receive(at(handle).handle, on_gpu, queue_->stream(), device_options);
  finish();
  arena_.down(on_gpu, output.data());
  arena_.down(device_options.returned_weights, options.returned_weights.data());
}

void DeviceCarrier::combine(int handle, const TensorView& rows, const TensorView& output,
                            const CombineOptions& options, const TensorView& row_weights) {
  const TensorView results = arena_.up(rows);
  const TensorView on_gpu = arena_.up(output);
  CombineOptions device_options = up(options);
  device_options.row_weights = arena_.up(row_weights);
  exchange_.combine(at(handle).handle, results, on_gpu, queue_->stream(), device_options);
  finish();
  arena_.down(on_gpu, output.data());
  arena_.down(device_options.returned_weights, options.returned_weights.data());
}

void DeviceCarrier::finish() {
  queue_->wait();
  exchange_.check();
  --num_alive_;
}

}  // namespace switchyard::conformance
