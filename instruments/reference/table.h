// SPDX-License-Identifier: Apache-2.0
//
// table.h: a row-major table that owns its values; the only container of the oracle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace switchyard::reference {

template <typename T>
struct Table {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<T> data;

  Table() = default;
  Table(std::int64_t num_rows, std::int64_t num_cols, T fill = T{})
      : rows(num_rows), cols(num_cols), data(static_cast<std::size_t>(num_rows * num_cols), fill) {}
  Table(std::int64_t num_rows, std::int64_t num_cols, std::vector<T> values)
      : rows(num_rows), cols(num_cols), data(std::move(values)) {}

  T& operator()(std::int64_t r, std::int64_t c) {
    return data[static_cast<std::size_t>(r * cols + c)];
  }
  const T& operator()(std::int64_t r, std::int64_t c) const {
    return data[static_cast<std::size_t>(r * cols + c)];
  }
  std::span<T> row(std::int64_t r) {
    return std::span(data).subspan(static_cast<std::size_t>(r * cols),
                                   static_cast<std::size_t>(cols));
  }
  std::span<const T> row(std::int64_t r) const {
    return std::span(data).subspan(static_cast<std::size_t>(r * cols),
                                   static_cast<std::size_t>(cols));
  }

  friend bool operator==(const Table&, const Table&) = default;
};

}  // namespace switchyard::reference
