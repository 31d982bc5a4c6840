// The least that the conditions of a plan cost: one loop in C++ over the tensors of a call. No global state, no symbolic sizes,
// no identity, one changed tensor: `guards.py` measures it as the floor.

#include <ATen/EmptyTensor.h>

#include "../../aotgrad/native/values.h"

namespace {

// --- alike(tensors), apart(tensors), alike_and_apart(tensors) -> check(values) -> bool

// What a trace depends on. The keys tell the layout, and whether values are lazily conjugated or negated.
struct Facts {
  PyTypeObject* type;
  c10::DispatchKeySet keys;
  c10::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  at::DimVector sizes, strides;
  size_t bytes;  // from the first element to the end of the last

  explicit Facts(PyObject* value) : Facts(Py_TYPE(value), tensor_of(value)) {}
  Facts(PyTypeObject* type, const at::Tensor& tensor)
      : type(type),
        keys(tensor.key_set()),
        dtype(tensor.scalar_type()),
        device(tensor.device()),
        requires_grad(tensor.requires_grad()),
        sizes(tensor.sizes()),
        strides(tensor.strides()),
        bytes(at::detail::computeStorageNbytes(sizes, strides, tensor.itemsize())) {}

  bool hold_for(PyObject* value) const {
    if (Py_TYPE(value) != type) return false;
    const at::Tensor& tensor = THPVariable_Unpack(value);
    return tensor.key_set() == keys && tensor.scalar_type() == dtype && tensor.device() == device &&
        tensor.requires_grad() == requires_grad && tensor.sizes() == sizes && tensor.strides() == strides;
  }
};

using Recorded = std::vector<Facts>;

// Whether values are as recorded, if they must be `alike`, and none reaches into the first, if that must lie `apart`.
template <bool alike, bool apart>
PyObject* check(PyObject* self, PyObject* values) {
  HANDLE_TH_ERRORS
  const auto& recorded = state_of<Recorded>(self);
  const Items items(values);
  if (items.size() != static_cast<Py_ssize_t>(recorded.size())) Py_RETURN_FALSE;
  const char* changed = nullptr;
  for (size_t k = 0; k < recorded.size(); ++k) {
    PyObject* value = items.begin()[k];
    if (alike && !recorded[k].hold_for(value)) Py_RETURN_FALSE;
    if (!apart) continue;
    const auto* start = static_cast<const char*>(THPVariable_Unpack(value).const_data_ptr());
    if (k == 0) {
      changed = start;
    } else if (start < changed + recorded[0].bytes && changed < start + recorded[k].bytes) {
      Py_RETURN_FALSE;
    }
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

template <bool alike, bool apart>
PyObject* recording(PyObject*, PyObject* tensors) {
  static PyMethodDef definition = {"check", check<alike, apart>, METH_O, "Whether tensors are as recorded."};
  HANDLE_TH_ERRORS
  const Items items(tensors);
  return function_with(&definition, std::make_unique<Recorded>(items.begin(), items.end()));
  END_HANDLE_TH_ERRORS
}

// --- reading(tables, keys) -> read() -> list

using Places = std::vector<std::pair<THPObjectPtr, THPObjectPtr>>;  // tables with a key that they keep

PyObject* read(PyObject* self, PyObject*) {
  auto& places = state_of<Places>(self);
  PyObject* found = PyList_New(static_cast<Py_ssize_t>(places.size()));
  for (size_t k = 0; k < places.size(); ++k) {
    auto& [table, key] = places[k];
    PyList_SET_ITEM(found, static_cast<Py_ssize_t>(k), Py_NewRef(PyDict_GetItem(table, key)));
  }
  return found;
}

PyMethodDef read_definition = {"read", read, METH_NOARGS, "The present values."};

PyObject* reading(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *tables, *keys;
  if (!PyArg_ParseTuple(arguments, "OO", &tables, &keys)) return nullptr;
  const Items some(tables), others(keys);
  auto places = std::make_unique<Places>();
  for (Py_ssize_t k = 0; k < some.size(); ++k) places->emplace_back(THPObjectPtr::dup(some[k]), THPObjectPtr::dup(others[k]));
  return function_with(&read_definition, std::move(places));
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"alike", recording<true, false>, METH_O, "alike(tensors) -> check(values): type, dtype, device, sizes, strides, grad"},
    {"apart", recording<false, true>, METH_O, "apart(tensors) -> check(values): none reaches into the first"},
    {"alike_and_apart", recording<true, true>, METH_O, "alike_and_apart(tensors) -> check(values): both"},
    {"reading", reading, METH_VARARGS, "reading(tables, keys) -> read(): a list of the values there"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "bare_guards", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_bare_guards() {
  return PyModule_Create(&definition);
}
