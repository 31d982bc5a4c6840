// What torch's CPU library asks about CUDA.

#pragma once

#include "device.h"
#include "generator.h"

#include <ATen/detail/CUDAHooksInterface.h>

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}

  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }

  int getNumGPUs() const override { return emulated::DEVICES; }
  DeviceIndex deviceCount() const override { return emulated::DEVICES; }
  DeviceIndex current_device() const override { return emulated::current_device; }
  DeviceIndex getCurrentDevice() const override { return emulated::current_device; }
  Device getDeviceFromPtr(void*) const override { return emulated::device_at(emulated::current_device); }
  void deviceSynchronize(DeviceIndex) const override {}

  const Generator& getDefaultGenerator(DeviceIndex index) const override { return emulated::default_generator(index); }
  Generator getNewGenerator(DeviceIndex index) const override { return emulated::new_generator(index); }
};

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, CUDAHooks)

}  // namespace at
