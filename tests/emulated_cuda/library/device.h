// The current device and streams of each thread. Nothing is asynchronous: what a stream was given to do is done.

#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstdint>

namespace emulated {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr DeviceIndex DEVICES = 2;

inline thread_local DeviceIndex current_device = 0;
inline thread_local c10::StreamId current_streams[DEVICES] = {0, 0};
inline std::atomic<int64_t> next_stream{1};
inline std::atomic<intptr_t> next_event{1};

inline DeviceIndex index_or_current(DeviceIndex index) { return index < 0 ? current_device : index; }
inline Device device_at(DeviceIndex index) { return Device(c10::kCUDA, index_or_current(index)); }
inline Stream stream_of(Device device, c10::StreamId id) { return Stream(Stream::UNSAFE, device_at(device.index()), id); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::kCUDA;

  c10::DeviceType type() const override { return static_type; }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }

  Device getDevice() const override { return device_at(current_device); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < DEVICES, "invalid device ordinal");
    current_device = device.index();
  }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }

  Stream getStream(Device device) const noexcept override {
    return stream_of(device, current_streams[index_or_current(device.index())]);
  }
  Stream getDefaultStream(Device device) const override { return stream_of(device, 0); }
  Stream getNewStream(Device device, int /*priority*/) const override { return stream_of(device, next_stream++); }
  Stream getStreamFromGlobalPool(Device device, bool /*high priority*/) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream stream) const noexcept override {
    const Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }

  void record(void** event, const Stream&, DeviceIndex, c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(next_event++);
  }
  void destroyEvent(void*, DeviceIndex) const noexcept override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
  double elapsedTime(void*, void*, DeviceIndex) const override { return 0; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace emulated
