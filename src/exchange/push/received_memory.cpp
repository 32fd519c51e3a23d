// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/received_memory.h"

namespace switchyard {

ReceivedMemory lay_out_received(std::byte* base, const PushExchangeShape& shape, int rank,
                                std::int64_t num_rows) {
  const ExchangeConfig& config = shape.config;
  const auto rows = static_cast<std::size_t>(num_rows);
  const auto topk = static_cast<std::size_t>(config.num_topk);
  const bool is_major = is_expert_major(config.layout);

  Carver parts(base, kPartAlignment);
  ReceivedMemory memory;
  carve(parts, memory.rows, checked_mul(rows, shape.exchange.payload_bytes));
  if (shape.exchange.num_scales > 0) {
    const ScaleBlocks scales = scale_blocks(config, shape.exchange, rank, num_rows);
    carve(parts, memory.scales, scales.num_bytes());
  }
  if (!is_major) carve(parts, memory.row_ids, rows * topk);
  if (config.sends_weights) carve(parts, memory.row_weights, rows * (is_major ? 1 : topk));
  for (const std::int64_t bytes : config.payload_bytes) {
    carve(parts, memory.payloads.emplace_back(),
          checked_mul(rows, static_cast<std::size_t>(bytes)));
  }
  memory.num_bytes = parts.used_bytes();
  return memory;
}

void lay_out_direct(PushExchangeShape& shape, int rank) {
  const std::int64_t rows = shape.exchange.max_buffer_rows;
  shape.direct = make_direct_layout(shape.main, shape.window_bytes, rows,
                                    lay_out_received(nullptr, shape, rank, rows).num_bytes);
}

}  // namespace switchyard
