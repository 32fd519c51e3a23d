// SPDX-License-Identifier: Apache-2.0

#include "heap/probe_window.h"

#include <array>

#include "core/fail.h"
#include "core/random.h"
#include "cuda/base/check.h"
#include "heap/probe_kernels.h"

namespace switchyard {
namespace {

enum class Place : std::uint64_t { kBegin, kEnd };
constexpr std::array<Place, 2> kPlaces{Place::kBegin, Place::kEnd};

Pattern pattern_of(std::uint64_t nonce, int writer, int reader, Place place) {
  Pattern pattern{};
  const std::uint64_t pair = (static_cast<std::uint64_t>(writer) << 32) |
                             (static_cast<std::uint64_t>(reader) << 1) |
                             static_cast<std::uint64_t>(place);
  for (std::uint64_t i = 0; i < kPatternWords; ++i) {
    pattern.words[i] = random_bits(nonce, pair * kPatternWords + i);
  }
  return pattern;
}

// Where `writer` stores in the window of `owner`, as mapped on this rank.
std::uint64_t* slot(const Heap& heap, int owner, int writer, Place place, int num_ranks) {
  const std::size_t all = static_cast<std::size_t>(num_ranks) * sizeof(Pattern);
  require(2 * all <= heap.mapped_bytes(), Errc::kInternal, "device window: {} ranks do not fit",
          num_ranks);
  const std::size_t first = place == Place::kBegin ? 0 : heap.mapped_bytes() - all;
  return reinterpret_cast<std::uint64_t*>(heap.base(owner) + first +
                                          static_cast<std::size_t>(writer) * sizeof(Pattern));
}

// Loads with a kernel: what copy engines can reach says little about what kernels can reach.
class Loader {
 public:
  Pattern load(const std::uint64_t* from) {
    launch_load_pattern(from, landing_.as<std::uint64_t>(), stream_.get());
    Pattern pattern{};
    cuda::check_cuda(cudaMemcpyAsync(&pattern, landing_.data(), sizeof(pattern),
                                     cudaMemcpyDeviceToHost, stream_.get()),
                     "cudaMemcpyAsync");
    cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "load of a pattern");
    return pattern;
  }

 private:
  cuda::OwnedStream stream_;
  cuda::DeviceBuffer landing_{sizeof(Pattern)};
};

bool is_equal(const Pattern& a, const Pattern& b) {
  for (int i = 0; i < kPatternWords; ++i) {
    if (a.words[i] != b.words[i]) return false;
  }
  return true;
}

}  // namespace

void write_patterns(const Heap& heap, int rank, std::uint64_t nonce) {
  const cuda::OwnedStream stream;
  const int num_ranks = heap.num_ranks();
  for (int peer = 0; peer < num_ranks; ++peer) {
    for (const Place place : kPlaces) {
      launch_store_pattern(pattern_of(nonce, rank, peer, place),
                           slot(heap, peer, rank, place, num_ranks), stream.get());
    }
    const std::string what = fmt::format("store into the window of rank {}", peer);
    cuda::check_cuda(cudaStreamSynchronize(stream.get()), what.c_str());
  }
}

void require_patterns(const Heap& heap, int rank, std::uint64_t nonce) {
  Loader loader;
  const int num_ranks = heap.num_ranks();
  for (int peer = 0; peer < num_ranks; ++peer) {
    for (const Place place : kPlaces) {
      const Pattern came = loader.load(slot(heap, rank, peer, place, num_ranks));
      require(is_equal(came, pattern_of(nonce, peer, rank, place)), Errc::kNotAvailable,
              "what rank {} stored through heap {} did not reach rank {}", peer,
              name_of(heap.kind()), rank);
      const Pattern there = loader.load(slot(heap, peer, rank, place, num_ranks));
      require(is_equal(there, pattern_of(nonce, rank, peer, place)), Errc::kNotAvailable,
              "rank {} cannot load through heap {} what it stored at rank {}", rank,
              name_of(heap.kind()), peer);
    }
  }
}

}  // namespace switchyard
