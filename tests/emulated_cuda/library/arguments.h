// CPU tensors in place of the device's, on the same memory, while an operator runs on the CPU.

#pragma once

#include "memory.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

namespace emulated {

using at::Tensor;

// What the kernels of a device see of lazy conjugates, negatives and zeros.
constexpr c10::DispatchKeySet LAZY_KEYS({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

inline Tensor dense_tensor(c10::Storage storage, c10::DispatchKey key, const Tensor& like) {
  const c10::DispatchKeySet keys = c10::DispatchKeySet(key) | (like.key_set() & LAZY_KEYS);
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

inline c10::Storage storage_on(Device device, size_t bytes) {
  const c10::DeviceGuard guard(device);
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, allocator.allocate(bytes), &allocator, /*resizable=*/true);
}

inline void copy_bytes(const c10::Storage& to, const c10::Storage& from) {
  if (from.nbytes() > 0) std::memcpy(to.mutable_data(), from.data(), from.nbytes());
}

class CpuArguments {
 public:
  // The CPU tensor for a tensor of a device; any other tensor itself.
  Tensor of(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    twins_.emplace_back(tensor, tensor.is_cuda() ? twin_of(tensor) : tensor);
    return twins_.back().second;
  }

  // Repeats on the tensors of the device what an operator changed of their twins beside the values.
  void write_back() {
    for (const auto& [tensor, twin] : twins_) {
      if (!tensor.is_cuda()) continue;
      if (twin.storage().data() != tensor.storage().data()) resize(tensor, twin.storage());
      if (twin.sizes() == tensor.sizes() && twin.strides() == tensor.strides()) continue;
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(twin.sizes(), twin.strides(), twin.storage_offset());
    }
  }

  // The tensor of a device for a result on the CPU: an argument, a view of an argument's memory, or a copy.
  Tensor to_device(const Tensor& result, Device device) const {
    if (!result.defined() || !result.device().is_cpu()) return result;
    for (const auto& [tensor, twin] : twins_) {
      if (twin.is_same(result)) return tensor;
    }
    return dense_tensor(device_storage(result.storage(), device), c10::DispatchKey::CUDA, result);
  }

 private:
  Tensor twin_of(const Tensor& tensor) {
    TORCH_CHECK(tensor.layout() == at::kStrided, "the emulated device has dense tensors only");
    const Tensor twin = dense_tensor(cpu_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) twin.unsafeGetTensorImpl()->set_wrapped_number(true);
    return twin;
  }

  c10::Storage cpu_storage(const c10::Storage& storage) {
    const auto known = to_cpu_.find(storage.unsafeGetStorageImpl());
    if (known != to_cpu_.end()) return known->second;
    c10::DataPtr same_memory(storage.mutable_data(), Device(c10::kCPU));
    const auto size = c10::Storage::use_byte_size_t();
    c10::Storage twin(size, storage.nbytes(), std::move(same_memory), c10::GetAllocator(c10::kCPU), /*resizable=*/true);
    to_cpu_.emplace(storage.unsafeGetStorageImpl(), twin);
    from_cpu_.emplace(twin.unsafeGetStorageImpl(), storage);
    return twin;
  }

  c10::Storage device_storage(const c10::Storage& storage, Device device) const {
    const auto known = from_cpu_.find(storage.unsafeGetStorageImpl());
    if (known != from_cpu_.end()) return known->second;
    c10::Storage copy = storage_on(device, storage.nbytes());
    copy_bytes(copy, storage);
    return copy;
  }

  static void resize(const Tensor& tensor, const c10::Storage& resized) {
    if (resized.nbytes() > tensor.storage().nbytes()) {
      const c10::DeviceGuard guard(tensor.device());
      tensor.storage().set_data_ptr_noswap(allocator.allocate(resized.nbytes()));
      tensor.storage().set_nbytes(resized.nbytes());
    }
    copy_bytes(tensor.storage(), resized);
  }

  std::vector<std::pair<Tensor, Tensor>> twins_;  // each with its tensor of a device first
  std::unordered_map<c10::StorageImpl*, c10::Storage> to_cpu_, from_cpu_;
};

}  // namespace emulated
