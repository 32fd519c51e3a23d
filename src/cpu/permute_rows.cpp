// SPDX-License-Identifier: Apache-2.0
//
// Both walk the tokens, not the destinations: a row is read once and written to up to K places,
// past the caches when all of them together are more than the last cache holds. Scales of a token
// are first gathered side by side, which makes any input stride and packing one case.

#include "cpu/permute_rows.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "core/fence.h"
#include "core/format.h"
#include "cpu/streaming.h"

namespace switchyard {
namespace {

// Whether distinct elements surely have distinct memory: one stride steps over the whole extent of
// the other.
bool is_injective(const TensorView& tensor) {
  std::int64_t extents[2];
  for (int dim = 0; dim < 2; ++dim) {
    const bool is_single = tensor.shape(dim) <= 1;
    if (!is_single && tensor.stride(dim) < 1) return false;
    extents[dim] = is_single ? 0 : checked_mul(tensor.shape(dim) - 1, tensor.stride(dim));
  }
  checked_mul<std::int64_t>(checked_add(extents[0], extents[1]), bits_of(tensor.dtype()));
  return tensor.shape(0) <= 1 || tensor.shape(1) <= 1 || tensor.stride(0) > extents[1] ||
         tensor.stride(1) > extents[0];
}

}  // namespace

ByteRows byte_rows(const char* function, const char* name, const TensorView& tensor,
                   bool is_output) {
  require(tensor.num_dims() == 2 && (tensor.shape(1) <= 1 || tensor.stride(1) == 1),
          Errc::kInvalidArgument, "{}: {} is {}, want [rows, hidden] with contiguous rows",
          function, name, tensor);
  const std::int64_t bits = bits_of(tensor.dtype());
  const std::int64_t row_bits = checked_mul(tensor.shape(1), bits);
  const std::int64_t stride_bits = checked_mul(tensor.stride(0), bits);
  const bool is_single = tensor.shape(0) <= 1;
  require(row_bits % 8 == 0 && (is_single || stride_bits % 8 == 0), Errc::kInvalidArgument,
          "{}: {} is {}, want rows of whole bytes", function, name, tensor);
  checked_mul(std::max<std::int64_t>(0, tensor.shape(0) - 1), stride_bits);
  require(!is_output || is_single || stride_bits >= row_bits, Errc::kInvalidArgument,
          "{}: {} is {}, want rows that do not overlap", function, name, tensor);
  return {tensor.as<std::byte>(), tensor.shape(0), static_cast<std::size_t>(row_bits / 8),
          stride_bits / 8};
}

void scatter_rows(const ByteRows& from, const Destinations& destinations, const ByteRows& to) {
  const bool streaming = wants_streaming(static_cast<std::size_t>(to.num_rows) * to.row_bytes, 1);
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

ScaleScatter::ScaleScatter(const char* function, const TensorView& from, const TensorView& to)
    : from_(from), to_(to), word_bits_(bits_of(to.dtype())) {
  require(from.num_dims() == 2, Errc::kInvalidArgument, "{}: scales is {}, want [T, S]", function,
          from);
  const bool packs = packs_scales(from, to.dtype());
  require(to.num_dims() == 2 && (packs || to.dtype() == from.dtype()), Errc::kInvalidArgument,
          "{}: output scales is {}, want {} [rows, {}], or i32 for e8m0 scales", function, to,
          name_of(from.dtype()), from.shape(1));
  const std::int64_t num_words = packs ? cdiv<std::int64_t>(from.shape(1), 4) : from.shape(1);
  require(to.shape(1) == num_words, Errc::kInvalidArgument,
          "{}: output scales is {}, want {} [rows, {}]", function, to, name_of(to.dtype()),
          num_words);
  require(bits_of(from.dtype()) % 8 == 0, Errc::kInvalidArgument,
          "{}: scales is {}, want elements of whole bytes", function, from);
  require(is_injective(to), Errc::kInvalidArgument,
          "{}: output scales is {}, want elements that do not overlap", function, to);
}

template <typename Word>
void ScaleScatter::scatter(const Destinations& destinations) const {
  const std::int64_t num_words = to_.shape(1);
  const std::int64_t element_bytes = bits_of(from_.dtype()) / 8;
  // Bytes beyond the last group stay 0. Little endian: byte j of a word is group 4p + j.
  std::vector<Word> words(static_cast<std::size_t>(num_words));
  auto* bytes = reinterpret_cast<std::byte*>(words.data());
  for (std::int64_t t = 0; t < from_.shape(0); ++t) {
    const std::byte* source = from_.as<std::byte>() + t * from_.stride(0) * element_bytes;
    for (std::int64_t s = 0; s < from_.shape(1); ++s) {
      const std::byte* scale = source + s * from_.stride(1) * element_bytes;
      if (element_bytes == sizeof(Word)) {
        std::memcpy(bytes + s * static_cast<std::int64_t>(sizeof(Word)), scale, sizeof(Word));
      } else {
        bytes[s] = *scale;
      }
    }
    for (const std::int32_t row : destinations.of(t)) {
      if (row < 0) continue;
      Word* to = to_.as<Word>() + row * to_.stride(0);
      for (std::int64_t w = 0; w < num_words; ++w) {
        to[w * to_.stride(1)] = words[static_cast<std::size_t>(w)];
      }
    }
  }
}

template <typename Word>
void ScaleScatter::clear(std::int64_t begin, std::int64_t end) const {
  for (std::int64_t w = 0; w < to_.shape(1); ++w) {
    Word* column = to_.as<Word>() + w * to_.stride(1);
    for (std::int64_t n = begin; n < end; ++n) column[n * to_.stride(0)] = 0;
  }
}

void ScaleScatter::run(const Destinations& destinations) const {
  switch (word_bits_) {
    case 8: return scatter<std::uint8_t>(destinations);
    case 16: return scatter<std::uint16_t>(destinations);
    case 32: return scatter<std::uint32_t>(destinations);
    default: return scatter<std::uint64_t>(destinations);
  }
}

void ScaleScatter::zero(std::int64_t begin, std::int64_t end) const {
  switch (word_bits_) {
    case 8: return clear<std::uint8_t>(begin, end);
    case 16: return clear<std::uint16_t>(begin, end);
    case 32: return clear<std::uint32_t>(begin, end);
    default: return clear<std::uint64_t>(begin, end);
  }
}

}  // namespace switchyard
