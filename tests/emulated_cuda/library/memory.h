// The memory of the devices: blocks of the process, counted as CUDA's allocator counts them.

#pragma once

#include "device.h"

#include <c10/core/Allocator.h>

#include <cstdlib>

namespace emulated {

constexpr int64_t BLOCK_BYTES = 512;  // sizes and addresses are multiples of it

struct Memory {
  std::atomic<int64_t> allocated{0}, peak{0};

  void add(int64_t bytes) {
    const int64_t now = allocated += bytes;
    int64_t before = peak;
    while (now > before && !peak.compare_exchange_weak(before, now)) {}
  }
  void reset_peak() { peak = allocated.load(); }
};

inline Memory memory_of[DEVICES];

struct Block {
  void* address;
  int64_t bytes;
  DeviceIndex device;
};

inline void free_block(void* context) {
  const auto* block = static_cast<Block*>(context);
  memory_of[block->device].allocated -= block->bytes;
  std::free(block->address);
  delete block;
}

struct CountingAllocator final : c10::Allocator {
  // On the current device, as every allocator of torch does.
  c10::DataPtr allocate(size_t bytes) override {
    const Device device = device_at(current_device);
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    const int64_t rounded = (static_cast<int64_t>(bytes) + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    void* address = nullptr;
    TORCH_CHECK(posix_memalign(&address, BLOCK_BYTES, rounded) == 0, "CUDA out of memory");
    memory_of[device.index()].add(rounded);
    return {address, new Block{address, rounded, device.index()}, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

inline CountingAllocator allocator;
REGISTER_ALLOCATOR(c10::kCUDA, &allocator)

}  // namespace emulated
