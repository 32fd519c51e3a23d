// SPDX-License-Identifier: Apache-2.0
//
// row_blocks.h: consecutive rows on their way from one rank to another, in blocks, so that the
// first rows move while the last are packed, and are placed while others are on their way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/messages.h"

namespace switchyard {

class RowBlocks {
 public:
  RowBlocks() = default;
  /// `first` has `lead` bytes before the first row. No rows: nothing travels.
  RowBlocks(MessageBuffer first, std::size_t lead, std::size_t stride, std::int64_t num_rows)
      : buffer_(std::move(first)), lead_(lead), stride_(stride), num_rows_(num_rows) {
    rows_per_block_ = static_cast<std::int64_t>(std::max<std::size_t>(1, kBlockBytes / stride));
  }

  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t rows_per_block() const { return rows_per_block_; }

  /// Starts the sends of the blocks whose rows are among the first `num_packed`, and adds them to
  /// `sent`.
  void send(MessageChannel& channel, int peer, int tag, std::int64_t num_packed,
            std::vector<MessageId>& sent) {
    while (has_next(num_packed)) sent.push_back(channel.send(peer, tag, next()));
  }
  void receive(MessageChannel& channel, int peer, int tag) {
    while (has_next(num_rows_)) received_.push_back(channel.receive(peer, tag, next()));
  }

  /// How many rows have come; looks for more.
  std::int64_t num_received(MessageChannel& channel) {
    while (num_done_ < received_.size() && channel.is_done(received_[num_done_])) ++num_done_;
    return std::min(num_rows_, static_cast<std::int64_t>(num_done_) * rows_per_block_);
  }

 private:
  static constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

  bool has_next(std::int64_t num_packed) const {
    return next_row_ < num_rows_ && num_packed >= std::min(num_rows_, next_row_ + rows_per_block_);
  }
  std::size_t offset_of(std::int64_t row) const {
    return row == 0 ? 0 : lead_ + static_cast<std::size_t>(row) * stride_;
  }
  MessageBuffer next() {
    const std::int64_t end = std::min(num_rows_, next_row_ + rows_per_block_);
    const std::size_t begin = offset_of(next_row_);
    next_row_ = end;
    return {buffer_.owner, buffer_.data + begin, offset_of(end) - begin};
  }

  MessageBuffer buffer_;
  std::size_t lead_ = 0;
  std::size_t stride_ = 1;
  std::int64_t num_rows_ = 0;
  std::int64_t rows_per_block_ = 1;
  std::int64_t next_row_ = 0;  ///< first row of the next block
  std::vector<MessageId> received_;
  std::size_t num_done_ = 0;
};

}  // namespace switchyard
