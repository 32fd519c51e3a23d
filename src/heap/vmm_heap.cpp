// SPDX-License-Identifier: Apache-2.0
//
// Ranks are processes. Each allocates physical memory with a file descriptor, passes the descriptor
// to the others over the sockets between the ranks, and maps what it receives at addresses of its
// own. The descriptors are closed once everything is mapped; the memory lives until the last
// mapping is gone, even after its owner has died.

#include "core/bytes.h"
#include "core/fail.h"
#include "heap/driver_api.h"
#include "heap/heap.h"

namespace switchyard {
namespace {

// A handle of physical memory; a mapping keeps the memory alive without it.
class PhysicalMemory {
 public:
  explicit PhysicalMemory(CUmemGenericAllocationHandle handle) : handle_(handle) {}
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;
  ~PhysicalMemory() { driver_api().mem_release(handle_); }
  CUmemGenericAllocationHandle get() const { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_;
};

CUmemAllocationProp shareable_memory_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

class VmmHeap final : public Heap {
 public:
  explicit VmmHeap(const HeapRequest& request) : Heap(HeapKind::kVmm, request) {}
  ~VmmHeap() override {
    release([&] {
      for (std::byte* const address : bases_) unmap(address);
    });
  }

  std::string place() override;
  void swap(const std::vector<std::string>& /*texts*/) override {
    descriptors_ = engine_->windows().swap_descriptors(own_descriptor_, mapped_bytes());
  }
  void map(const std::vector<std::string>& texts) override;

 private:
  void map_at(int peer, const PhysicalMemory& memory);
  void unmap(std::byte* address) const noexcept;

  std::unique_ptr<PhysicalMemory> own_;
  Fd own_descriptor_;
  std::vector<Fd> descriptors_;
};

std::string VmmHeap::place() {
  const CUmemAllocationProp properties = shareable_memory_of(device_);
  std::size_t unit = 0;
  check_driver(driver_api().mem_get_allocation_granularity(&unit, &properties,
                                                           CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "cuMemGetAllocationGranularity");
  mapped_bytes_ = align_up(mapped_bytes_, unit);
  CUmemGenericAllocationHandle handle = 0;
  check_driver(driver_api().mem_create(&handle, mapped_bytes_, &properties, 0), "cuMemCreate");
  own_ = std::make_unique<PhysicalMemory>(handle);
  int descriptor = -1;
  check_driver(
      driver_api().mem_export(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  own_descriptor_ = Fd(descriptor);
  return fmt::format("{}", mapped_bytes_);
}

void VmmHeap::map(const std::vector<std::string>& texts) {
  for (int peer = 0; peer < num_ranks(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    require(texts[index] == texts[static_cast<std::size_t>(rank_)], Errc::kNotAvailable,
            "rank {} has {} bytes in its units, this rank {}; the GPUs must be of one kind", peer,
            texts[index], texts[static_cast<std::size_t>(rank_)]);
    if (peer == rank_) {
      map_at(peer, *own_);
      continue;
    }
    CUmemGenericAllocationHandle handle = 0;
    // The driver wants the descriptor itself in place of a pointer.
    void* const descriptor =
        reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptors_[index].get()));
    const std::string what = fmt::format("cuMemImportFromShareableHandle of rank {}", peer);
    check_driver(
        driver_api().mem_import(&handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        what.c_str());
    map_at(peer, PhysicalMemory(handle));
  }
  own_.reset();
  own_descriptor_.reset();
  descriptors_.clear();
}

void VmmHeap::map_at(int peer, const PhysicalMemory& memory) {
  CUdeviceptr address = 0;
  check_driver(driver_api().mem_address_reserve(&address, mapped_bytes_, 0, 0, 0),
               "cuMemAddressReserve");
  const CUresult mapped = driver_api().mem_map(address, mapped_bytes_, 0, memory.get(), 0);
  if (mapped != CUDA_SUCCESS) driver_api().mem_address_free(address, mapped_bytes_);
  check_driver(mapped, "cuMemMap");
  bases_[static_cast<std::size_t>(peer)] = reinterpret_cast<std::byte*>(address);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const std::string what = fmt::format("cuMemSetAccess to rank {}", peer);
  check_driver(driver_api().mem_set_access(address, mapped_bytes_, &access, 1), what.c_str());
}

void VmmHeap::unmap(std::byte* address) const noexcept {
  if (address == nullptr) return;
  const auto mapped = reinterpret_cast<CUdeviceptr>(address);
  driver_api().mem_unmap(mapped, mapped_bytes_);
  driver_api().mem_address_free(mapped, mapped_bytes_);
}

}  // namespace

std::unique_ptr<Heap> make_vmm_heap(const HeapRequest& request) {
  return std::make_unique<VmmHeap>(request);
}

}  // namespace switchyard
