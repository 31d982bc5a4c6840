// The operators of the devices: every operator runs the CPU's kernel on the same memory, except those that make tensors.

#pragma once

#include "arguments.h"
#include "generator.h"

#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace emulated {

using c10::IValue;

// --- The tensors in a value of an operator's stack

// The value with `change(tensor)` in place of each tensor.
template <class Change>
IValue with_tensors(const IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> changed;
    for (const Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> changed;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
      changed.push_back(tensor ? std::optional<Tensor>(change(*tensor)) : std::nullopt);
    }
    return changed;
  }
  return value;
}

// --- The device of a call

// Whether an operator of CUDA takes tensors of several devices: all copies, and an index on the CPU.
inline bool takes_several_devices(const std::string& name) {
  constexpr std::string_view names[] = {"aten::set_", "aten::is_set_to", "aten::index", "aten::index_put", "aten::index_put_"};
  if (std::find(std::begin(names), std::end(names), name) != std::end(names)) return true;
  constexpr std::string_view parts[] = {"copy_from", "copy_", "_index_put_impl_", "_unsafe_index", "_amp_"};
  const auto is_part = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  return name != "aten::index_copy_" && std::any_of(std::begin(parts), std::end(parts), is_part);
}

class CallDevice {
 public:
  explicit CallDevice(const c10::FunctionSchema& schema)
      : name_(schema.name()), takes_several_(takes_several_devices(schema.name())) {}

  void see(const IValue& value) {
    if (value.isDevice()) requested_ = value.toDevice();
    with_tensors(value, [this](const Tensor& tensor) {
      if (tensor.defined()) see(tensor.device(), tensor.dim());
      return tensor;
    });
  }

  // The device of the results.
  Device get() const {
    const Device device = requested_ && requested_->is_cuda() ? *requested_ : of_tensors_.value_or(Device(c10::kCUDA));
    return device_at(device.index());
  }

 private:
  // A scalar on the CPU stands for a number.
  void see(Device device, int64_t dimensions) {
    if (device.is_cpu() && dimensions == 0) return;
    if (seen_ && *seen_ != device && !takes_several_) {
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *seen_, " and ",
                  device, "! (", name_, ")");
    }
    seen_ = device;
    if (device.is_cuda() && !of_tensors_) of_tensors_ = device;
  }

  const std::string& name_;
  bool takes_several_;
  std::optional<Device> seen_, of_tensors_, requested_;
};

// --- Random numbers

inline bool is_generator(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional ? is_generator(*optional->getElementType()) : type.kind() == c10::TypeKind::GeneratorType;
}

inline bool takes_generator(const c10::FunctionSchema& schema) {
  const auto is_one = [](const c10::Argument& argument) { return is_generator(*argument.type()); };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), is_one);
}

inline at::Generator cpu_generator(const IValue& given, Device device) {
  at::Generator generator = given.isNone() ? default_generator(device.index()) : given.toGenerator();
  const auto type = generator.device().type();
  TORCH_CHECK(type == c10::kCUDA, "Expected a 'cuda' device type for generator but found '", type, "'");
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get<Generator>()->draw();
}

// While it lives, the CPU's default generator draws what the device's would draw, for operators that name no generator.
class DefaultGenerator {
 public:
  explicit DefaultGenerator(Device device) : one_at_a_time_(mutex()) {
    const at::Generator drawn = cpu_generator(IValue(), device);
    exchange(drawn.get_state(), &before_);
  }
  ~DefaultGenerator() { exchange(before_, nullptr); }

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex mutex;
    return mutex;
  }
  static void exchange(const Tensor& state, Tensor* before) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    if (before) *before = generator.get_state();
    generator.set_state(state);
  }

  std::lock_guard<std::recursive_mutex> one_at_a_time_;
  Tensor before_;
};

// --- Any operator

inline IValue cpu_argument(const IValue& value, const c10::Argument& argument, CpuArguments& arguments, Device device) {
  if (value.isDevice() && value.toDevice().is_cuda()) return Device(c10::kCPU);
  if (is_generator(*argument.type())) return cpu_generator(value, device);
  return with_tensors(value, [&](const Tensor& tensor) { return arguments.of(tensor); });
}

inline void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, Device device) {
  std::optional<DefaultGenerator> generator;
  if (op.hasTag(at::Tag::nondeterministic_seeded) && !takes_generator(op.schema())) generator.emplace(device);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

inline void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t given = schema.arguments().size(), returned = schema.returns().size();
  CallDevice call(schema);
  for (const IValue& value : torch::jit::last(*stack, given)) call.see(value);
  const Device device = call.get();
  CpuArguments arguments;
  for (size_t k = 0; k < given; k++) {
    IValue& value = torch::jit::peek(*stack, k, given);
    value = cpu_argument(value, schema.arguments()[k], arguments, device);
  }
  run_on_cpu(op, stack, device);
  arguments.write_back();
  for (size_t k = 0; k < returned; k++) {
    IValue& value = torch::jit::peek(*stack, k, returned);
    value = with_tensors(value, [&](const Tensor& tensor) { return arguments.to_device(tensor, device); });
  }
}

// --- Operators that make tensors

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using OptionalDevice = std::optional<Device>;
using Pinned = std::optional<bool>;
using Format = std::optional<at::MemoryFormat>;

constexpr c10::DispatchKeySet CUDA_KEY(c10::DispatchKey::CUDA);

inline Tensor empty(at::IntArrayRef sizes, Dtype dtype, Layout, OptionalDevice device, Pinned, Format format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &allocator, CUDA_KEY, c10::dtype_or_default(dtype), format);
}

inline Tensor empty_strided(
    at::IntArrayRef sizes, at::IntArrayRef strides, Dtype dtype, Layout, OptionalDevice device, Pinned) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator, CUDA_KEY, c10::dtype_or_default(dtype));
}

inline Tensor zero_tensor(at::IntArrayRef sizes, Dtype dtype, Layout, OptionalDevice device, Pinned) {
  static at::native::ZeroTensorAllocator allocators[DEVICES] = {
      at::native::ZeroTensorAllocator(device_at(0)), at::native::ZeroTensorAllocator(device_at(1))};
  auto& zeros = allocators[index_or_current(device ? device->index() : -1)];
  const c10::DispatchKeySet keys = CUDA_KEY | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(sizes, &zeros, keys, c10::dtype_or_default(dtype), std::nullopt);
}

inline Tensor as_strided(const Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

inline Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const c10::DeviceGuard guard(self.device());
  return at::native::set_storage_cpu_(self, std::move(source), offset, sizes, strides);
}

inline Tensor& set_source(Tensor& self, at::Storage source) {
  const int64_t elements = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

inline Tensor& set_empty(Tensor& self) { return set_tensor(self, at::empty({0}, self.options())); }

inline void record_stream(Tensor&, c10::Stream) {}

// By matrix products: there are no fused kernels.
inline int64_t attention_backend(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;
}

inline bool no_fused_ctc_loss(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; }

inline bool no_fused_ctc_loss_of_tensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
  return false;
}

// Structured operators, by name. Their kernels for all devices call the out= form, which warns of some results' shapes.
inline std::vector<std::string> structured_operators() {
  constexpr auto FOR_ALL_DEVICES = c10::DispatchKey::CompositeExplicitAutogradNonFunctional;
  const std::string space = "aten::";
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<std::string> found;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    const bool is_structured = op->hasKernelForDispatchKey(FOR_ALL_DEVICES) && !op->hasTag(at::Tag::inplace_view);
    if (is_structured && name.name.rfind(space, 0) == 0) {
      found.push_back(toString(name).substr(space.size()));
    }
  }
  return found;
}

inline void run_kernels_of_cpu(torch::Library& library, const std::string& name) {
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_efficientzerotensor", zero_tensor);
  library.impl("_fused_sdp_choice", attention_backend);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("_use_cudnn_ctc_loss", no_fused_ctc_loss);
  library.impl("_use_cudnn_ctc_loss.Tensor", no_fused_ctc_loss_of_tensors);
  library.impl("_use_miopen_ctc_loss", no_fused_ctc_loss);
  library.impl("_use_miopen_ctc_loss.Tensor", no_fused_ctc_loss_of_tensors);
  library.impl("as_strided", as_strided);
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("record_stream", record_stream);
  library.impl("resize_", at::native::resize_);
  library.impl("set_", set_empty);
  library.impl("set_.source_Storage", set_source);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("unfold", at::native::unfold);
  library.impl("view", at::native::view);
  // Their kernels for all devices look for one of the device.
  for (const std::string name : {"convolution", "convolution_backward", "copy_"}) run_kernels_of_cpu(library, name);
  for (const std::string& name : structured_operators()) run_kernels_of_cpu(library, name);
}

}  // namespace emulated
