// SPDX-License-Identifier: Apache-2.0

#include "core/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "core/bytes.h"
#include "core/memory.h"

namespace switchyard {
namespace {

constexpr std::size_t kAlignment = 128;  // two cache lines: processors fetch them in pairs
constexpr std::size_t kMapFrom = std::size_t{1} << 20;  // buffers of at least this size are mapped

}  // namespace

std::byte* allocate_zeroed(std::size_t bytes) {
  if (bytes >= kMapFrom) {
    require_memory("buffer", bytes);
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(data != MAP_FAILED, Errc::kOutOfMemory, "buffer: {} bytes could not be mapped", bytes);
    madvise(data, bytes, MADV_HUGEPAGE);  // a hint; a refusal does no harm
    return static_cast<std::byte*>(data);
  }
  const std::size_t rounded = align_up(bytes == 0 ? std::size_t{1} : bytes, kAlignment);
  void* data = std::aligned_alloc(kAlignment, rounded);
  require(data != nullptr, Errc::kOutOfMemory, "buffer: {} bytes could not be allocated", bytes);
  std::memset(data, 0, rounded);
  return static_cast<std::byte*>(data);
}

void release_zeroed(std::byte* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  if (bytes >= kMapFrom) {
    munmap(data, bytes);
  } else {
    std::free(data);
  }
}

}  // namespace switchyard
