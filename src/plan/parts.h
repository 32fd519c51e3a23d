// SPDX-License-Identifier: Apache-2.0
//
// parts.h: hands out parts of a memory, one after the other, each beginning at a line.
#pragma once

#include <cstddef>

#include "core/bytes.h"
#include "plan/window_layout.h"

namespace switchyard {

class Parts {
 public:
  /// The offset of the next `bytes`. Errors: kInvalidArgument when a size overflows.
  std::size_t add(std::size_t bytes) {
    const std::size_t offset = total_;
    total_ = checked_add(total_, checked_add(bytes, kLineBytes - 1) / kLineBytes * kLineBytes);
    return offset;
  }
  std::size_t total() const { return total_; }

 private:
  std::size_t total_ = 0;
};

}  // namespace switchyard
