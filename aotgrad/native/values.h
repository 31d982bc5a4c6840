// Values of Python: sequences, tensors, numbers, and functions with a state.

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <memory>
#include <vector>

namespace {

// The items of a list, a tuple or another sequence.
class Items {
 public:
  explicit Items(PyObject* values) : sequence_(PySequence_Fast(values, "expected a sequence")) {
    if (!sequence_) throw python_error();
    begin_ = PySequence_Fast_ITEMS(sequence_.get());
    size_ = PySequence_Fast_GET_SIZE(sequence_.get());
  }
  PyObject** begin() const { return begin_; }
  PyObject** end() const { return begin_ + size_; }
  Py_ssize_t size() const { return size_; }
  PyObject* operator[](Py_ssize_t index) const {
    TORCH_CHECK_INDEX(index >= 0 && index < size_, "there is no item ", index, " among ", size_);
    return begin_[index];
  }

 private:
  THPObjectPtr sequence_;
  PyObject** begin_;
  Py_ssize_t size_;
};

const at::Tensor& tensor_of(PyObject* value) {
  const bool is_tensor = PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(THPVariableClass));
  TORCH_CHECK_TYPE(is_tensor && THPVariable_Unpack(value).defined(), "expected a tensor, got ", Py_TYPE(value)->tp_name);
  return THPVariable_Unpack(value);
}

int64_t integer_of(PyObject* value) {
  const int64_t found = PyLong_AsLongLong(value);
  if (found == -1 && PyErr_Occurred()) throw python_error();
  return found;
}

std::vector<int64_t> integers_of(PyObject* values) {
  std::vector<int64_t> found;
  for (PyObject* value : Items(values)) found.push_back(integer_of(value));
  return found;
}

// The positions of some tensors among the values that a function is called with.
struct Positions {
  std::vector<int64_t> positions;

  explicit Positions(PyObject* values) : positions(integers_of(values)) {}
  std::vector<const at::Tensor*> in(const Items& items) const {
    std::vector<const at::Tensor*> found;
    found.reserve(positions.size());
    for (const Py_ssize_t k : positions) found.push_back(&tensor_of(items[k]));
    return found;
  }
};

// A capsule that owns a state.
template <class State>
THPObjectPtr capsule_of(std::unique_ptr<State> state) {
  const auto destroy = [](PyObject* capsule) { delete static_cast<State*>(PyCapsule_GetPointer(capsule, nullptr)); };
  THPObjectPtr capsule(PyCapsule_New(state.get(), nullptr, destroy));
  if (!capsule) throw python_error();
  state.release();
  return capsule;
}

// A Python function with a state of its own, which `state_of` returns. Python does not look into it for cycles.
template <class State>
PyObject* function_with(PyMethodDef* definition, std::unique_ptr<State> state) {
  return PyCFunction_New(definition, capsule_of(std::move(state)).get());
}

template <class State>
State& state_of(PyObject* self) {
  return *static_cast<State*>(PyCapsule_GetPointer(self, nullptr));
}

}  // namespace
