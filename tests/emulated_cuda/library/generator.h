// Generators as CUDA's are: the state is a seed and an offset, 16 bytes, which may not be read while a graph is captured.

#pragma once

#include "device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>

#include <array>
#include <cstring>

namespace emulated {

inline std::atomic<bool> is_capturing{false};
inline std::atomic<bool> hands_out_default_generators{false};

struct GeneratorState final : c10::intrusive_ptr_target {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;

  c10::intrusive_ptr<GeneratorState> clone() const {
    auto copy = c10::make_intrusive<GeneratorState>();
    copy->seed = seed;
    copy->offset = offset;
    return copy;
  }
};

struct Generator final : c10::GeneratorImpl {
  static constexpr uint64_t OFFSETS_OF_AN_OP = 4;
  static constexpr uint64_t MULTIPLIER = 6364136223846793005ULL;  // Knuth's; any odd number that mixes seed and offset
  using Bytes = std::array<uint64_t, 2>;

  explicit Generator(DeviceIndex index)
      : GeneratorImpl(device_at(index), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        state_(c10::make_intrusive<GeneratorState>()) {}

  static c10::DeviceType device_type() { return c10::kCUDA; }

  uint64_t current_seed() const override { return readable().seed; }
  uint64_t get_offset() const override { return readable().offset; }
  void set_offset(uint64_t offset) override { readable().offset = offset; }
  void set_current_seed(uint64_t seed) override {
    readable().seed = seed;
    readable().offset = 0;
  }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return state_->seed;
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const Bytes bytes{readable().seed, readable().offset};
    const at::Tensor copy = at::detail::empty_cpu({sizeof(Bytes)}, at::kByte);
    std::memcpy(copy.mutable_data_ptr(), bytes.data(), sizeof(Bytes));
    return copy.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device().is_cpu() && state.dtype() == at::kByte, "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(state.numel() == sizeof(Bytes) && state.data() != nullptr, "RNG state is wrong size");
    Bytes bytes;
    std::memcpy(bytes.data(), state.data(), sizeof(Bytes));
    readable().seed = bytes[0];
    readable().offset = bytes[1];
  }

  // Hand over the state itself rather than a copy of its bytes; a capture allows that.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    TORCH_CHECK(other->device() == device(), "the state of ", other->device(), " is none of ", device());
    state_ = static_cast<const Generator&>(*other).state_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override { return with_state(state_); }
  Generator* clone_impl() const override { return with_state(state_->clone()).release(); }

  // A CPU generator from which one op draws.
  at::Generator draw() {
    const uint64_t seed = state_->seed * MULTIPLIER + state_->offset;
    state_->offset += OFFSETS_OF_AN_OP;
    return at::make_generator<at::CPUGeneratorImpl>(seed);
  }

 private:
  GeneratorState& readable() const {
    TORCH_CHECK(!is_capturing.load(), "Cannot read or seed a CUDA generator during CUDA graph capture.");
    return *state_;
  }
  c10::intrusive_ptr<Generator> with_state(c10::intrusive_ptr<GeneratorState> state) const {
    auto other = c10::make_intrusive<Generator>(device().index());
    other->state_ = std::move(state);
    return other;
  }

  c10::intrusive_ptr<GeneratorState> state_;
};

inline const at::Generator& default_generator(DeviceIndex index) {
  static const at::Generator generators[DEVICES] = {at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  return generators[index_or_current(index)];
}

inline at::Generator new_generator(DeviceIndex index) {
  if (hands_out_default_generators) return default_generator(index);
  return at::make_generator<Generator>(index_or_current(index));
}

}  // namespace emulated
