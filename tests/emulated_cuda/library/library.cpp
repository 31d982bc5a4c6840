// CUDA with two devices for a torch that was built without it. Whatever registers itself with torch does so when this loads.
//
// `device.py` loads it and calls the functions below by their names.

#include "device.h"
#include "generator.h"
#include "hooks.h"
#include "memory.h"
#include "operators.h"

#include <torch/csrc/autograd/engine.h>

extern "C" {

int emulated_current_device() { return emulated::current_device; }

// Negative: keep the device, as torch's own guards do for tensors on the CPU.
int emulated_exchange_device(int device) {
  const int before = emulated::current_device;
  if (device >= 0) emulated::current_device = device;
  return before;
}

int64_t emulated_allocated(int device) { return emulated::memory_of[device].allocated; }
int64_t emulated_peak(int device) { return emulated::memory_of[device].peak; }
void emulated_reset_peak(int device) { emulated::memory_of[device].reset_peak(); }

// Whether `torch.Generator(device)` is the default generator of the device, which torch has no other way to hand out.
void emulated_hand_out_default_generators(bool on) { emulated::hands_out_default_generators = on; }

void emulated_set_capturing(bool on) { emulated::is_capturing = on; }
bool emulated_is_capturing() { return emulated::is_capturing; }

// Of a storage of a device, whose contents it keeps.
void emulated_resize_storage(c10::StorageImpl* storage, size_t bytes) {
  const c10::DeviceGuard guard(storage->device());
  at::native::resize_bytes_cpu(storage, bytes);
}

// The threads of the autograd engine end. At exit they would need an interpreter that is gone, and abort the process.
void emulated_stop_threads() { torch::autograd::Engine::get_default_engine().stop(); }
}
