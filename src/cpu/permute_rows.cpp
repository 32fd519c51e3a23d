// SPDX-License-Identifier: Apache-2.0
//
// Rows are copied in token order: each is read once and written to up to K places, bypassing the
// caches if all copies together exceed the last-level cache. Scales are written in destination
// order, so that padding is written along the way. Columns of a column-major output are far apart,
// often by a multiple of 4 KiB, and then share a few cache lines: a tile of rows is transposed in
// L1 first.

#include "cpu/permute_rows.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/fence.h"
#include "cpu/streaming.h"

namespace switchyard {

void scatter_rows(const ByteRows& from, const Destinations& destinations, const ByteRows& to) {
  const std::int32_t* all = destinations.inv_perm;
  const auto num_copies = std::count_if(all, all + from.num_rows * destinations.num_topk,
                                        [](std::int32_t row) { return row >= 0; });
  const bool streaming = wants_streaming(static_cast<std::size_t>(num_copies) * to.row_bytes, 1);
  std::vector<std::byte*> places;
  for (std::int64_t t = 0; t < from.num_rows; ++t) {
    places.clear();
    for (const std::int32_t row : destinations.of(t)) {
      if (row >= 0) places.push_back(to.row(row));
    }
    if (!places.empty()) copy_row(from.row(t), places, from.row_bytes, streaming);
  }
  if (streaming) streaming_store_fence();
}

// Writes the scales of one token, or zeros if there is none, to words `step` apart. When packing,
// group 4p + j becomes byte j of word p, counted from the least significant.
template <typename Word>
void ScaleScatter::collect(std::int64_t token, Word* words, std::int64_t step) const {
  const std::int64_t num_words = to_.shape(1);
  if (token < 0) {
    for (std::int64_t w = 0; w < num_words; ++w) words[w * step] = 0;
    return;
  }
  if (from_.dtype() == to_.dtype()) {
    const Word* scales = from_.as<Word>() + token * from_.stride(0);
    for (std::int64_t w = 0; w < num_words; ++w) words[w * step] = scales[w * from_.stride(1)];
    return;
  }
  const std::uint8_t* scales = from_.as<std::uint8_t>() + token * from_.stride(0);
  for (std::int64_t w = 0; w < num_words; ++w) {
    std::uint64_t word = 0;
    for (std::int64_t s = 4 * w; s < std::min(4 * w + 4, from_.shape(1)); ++s) {
      word |= std::uint64_t{scales[s * from_.stride(1)]} << (s % 4 * 8);
    }
    words[w * step] = static_cast<Word>(word);
  }
}

template <typename Word>
void ScaleScatter::scatter_columns(const std::vector<std::int64_t>& token_of_row) const {
  if (to_.shape(1) == 0) return;
  constexpr std::int64_t kTileRows = 256 / sizeof(Word);  // four cache lines per column
  std::vector<Word> tile(static_cast<std::size_t>(kTileRows * to_.shape(1)));
  for (std::int64_t first = 0; first < to_.shape(0); first += kTileRows) {
    const std::int64_t count = std::min(kTileRows, to_.shape(0) - first);
    const std::int64_t* tokens = token_of_row.data() + first;
    if (std::all_of(tokens, tokens + count, [](std::int64_t token) { return token < 0; })) {
      std::fill(tile.begin(), tile.end(), Word{0});
    } else {
      for (std::int64_t i = 0; i < count; ++i) collect(tokens[i], tile.data() + i, kTileRows);
    }
    for (std::int64_t w = 0; w < to_.shape(1); ++w) {
      std::copy_n(tile.data() + w * kTileRows, count, to_.as<Word>() + first + w * to_.stride(1));
    }
  }
}

template <typename Word>
void ScaleScatter::scatter(const std::vector<std::int64_t>& token_of_row) const {
  if (to_.stride(0) == 1) return scatter_columns<Word>(token_of_row);
  for (std::int64_t n = 0; n < to_.shape(0); ++n) {
    collect(token_of_row[static_cast<std::size_t>(n)], to_.as<Word>() + n * to_.stride(0),
            to_.stride(1));
  }
}

void ScaleScatter::run(const Destinations& destinations) const {
  std::vector<std::int64_t> token_of_row(static_cast<std::size_t>(to_.shape(0)), -1);
  for (std::int64_t t = 0; t < from_.shape(0); ++t) {
    for (const std::int32_t row : destinations.of(t)) {
      if (row >= 0) token_of_row[static_cast<std::size_t>(row)] = t;
    }
  }
  switch (bits_of(to_.dtype())) {
    case 8: return scatter<std::uint8_t>(token_of_row);
    case 16: return scatter<std::uint16_t>(token_of_row);
    case 32: return scatter<std::uint32_t>(token_of_row);
    default: return scatter<std::uint64_t>(token_of_row);
  }
}

}  // namespace switchyard
