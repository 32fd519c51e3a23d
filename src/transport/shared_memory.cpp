// SPDX-License-Identifier: Apache-2.0

#include "transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>

#include "core/bytes.h"
#include "core/fail.h"

namespace switchyard {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

Mapping::Mapping(const Fd& memory, std::size_t bytes) : bytes_(bytes == 0 ? 1 : bytes) {
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (data == MAP_FAILED) fail_errno("mmap", fmt::format("{} bytes of shared memory", bytes));
  madvise(data, bytes_, MADV_HUGEPAGE);  // a hint; a refusal does no harm
  data_ = static_cast<std::byte*>(data);
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Fd make_shared_memory(const char* label, std::size_t bytes) {
  Fd memory(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.has_value()) fail_errno("memfd_create", label);
  require(bytes <= static_cast<std::size_t>(std::numeric_limits<off_t>::max()), Errc::kOutOfMemory,
          "window: {} bytes of shared memory are more than a file can have", bytes);
  if (ftruncate(memory.get(), static_cast<off_t>(bytes == 0 ? 1 : bytes)) != 0) {
    fail_errno("ftruncate", fmt::format("{} bytes of shared memory", bytes));
  }
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) fail_errno("fcntl", "seal shared memory");
  return memory;
}

void check_shared_memory(const Fd& memory, std::size_t bytes) {
  struct stat status {};
  if (fstat(memory.get(), &status) != 0) fail_errno("fstat", "shared memory");
  const auto size = static_cast<std::size_t>(status.st_size);
  require(size == (bytes == 0 ? 1 : bytes), Errc::kSystem,
          "shared memory: {} bytes came from a peer, must be {}", size, bytes);
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  require(seals >= 0 && (seals & F_SEAL_SHRINK) != 0, Errc::kSystem,
          "shared memory: what came from a peer is not sealed against shrinking");
}

}  // namespace switchyard
