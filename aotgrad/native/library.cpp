// Questions that aotgrad asks of every tensor at every call, for all tensors at once. __init__.py lists what each one replaces.
//
// A repeated question comes in two parts: a function takes what is constant, and returns a function of what varies. None of
// them runs Python code, so the tensors of a list stay alive meanwhile. The GIL is held throughout.

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Dtype.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "node.h"
#include "values.h"

namespace {

// --- tensor_check(tensors, sizes, strides) -> check(values) -> bool

// Sizes or strides of the trace; no value where any is right.
struct Numbers {
  std::vector<std::optional<int64_t>> numbers;

  explicit Numbers(PyObject* values) {
    for (PyObject* value : Items(values)) numbers.push_back(Py_IsNone(value) ? std::nullopt : std::optional(integer_of(value)));
  }
  bool fit(at::IntArrayRef found) const {
    const auto fits = [](const std::optional<int64_t>& wanted, int64_t number) { return !wanted || *wanted == number; };
    return std::equal(numbers.begin(), numbers.end(), found.begin(), found.end(), fits);
  }
};

// The keys that an op sees: a dispatch mode, a transform and inference mode change them.
c10::DispatchKeySet keys_of(const at::Tensor& tensor) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return (tensor.key_set() | local.included_) - local.excluded_;
}

struct TensorFacts {
  THPObjectPtr type;
  c10::DispatchKeySet keys;
  c10::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  Numbers sizes, strides;

  bool hold_for(PyObject* value) const {
    if (reinterpret_cast<const PyObject*>(Py_TYPE(value)) != type.get()) return false;
    const at::Tensor& tensor = THPVariable_Unpack(value);
    return tensor.defined() && keys_of(tensor) == keys && tensor.scalar_type() == dtype && tensor.device() == device &&
        tensor.requires_grad() == requires_grad && sizes.fit(tensor.sizes()) && strides.fit(tensor.strides());
  }
};

struct TensorCheck {
  std::vector<TensorFacts> facts;
  std::vector<PyObject*> distinct;  // the last distinct tensors: compared, never dereferenced

  bool are_distinct(const Items& items) {
    if (std::equal(distinct.begin(), distinct.end(), items.begin(), items.end())) return true;
    std::vector<PyObject*> sorted(items.begin(), items.end());
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
    distinct.assign(items.begin(), items.end());
    return true;
  }
};

PyObject* check_tensors(PyObject* self, PyObject* values) {
  HANDLE_TH_ERRORS
  auto& check = state_of<TensorCheck>(self);
  const Items items(values);
  const auto holds = [](const TensorFacts& facts, PyObject* value) { return facts.hold_for(value); };
  const bool alike = std::equal(check.facts.begin(), check.facts.end(), items.begin(), items.end(), holds);
  return PyBool_FromLong(alike && check.are_distinct(items));
  END_HANDLE_TH_ERRORS
}

PyMethodDef check_definition = {"check", check_tensors, METH_O, "Whether values are tensors that match those of the trace."};

PyObject* tensor_check(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *tensors, *all_sizes, *all_strides;
  if (!PyArg_ParseTuple(arguments, "OOO", &tensors, &all_sizes, &all_strides)) return nullptr;
  const Items items(tensors), sizes(all_sizes), strides(all_strides);
  auto check = std::make_unique<TensorCheck>();
  for (Py_ssize_t k = 0; k < items.size(); ++k) {
    const at::Tensor& tensor = tensor_of(items[k]);
    if (keys_of(tensor).has(c10::DispatchKey::Python)) Py_RETURN_NONE;  // Python code may compute its sizes
    auto type = THPObjectPtr::dup(reinterpret_cast<PyObject*>(Py_TYPE(items[k])));
    check->facts.push_back({std::move(type), keys_of(tensor), tensor.scalar_type(), tensor.device(), tensor.requires_grad(),
                            Numbers(sizes[k]), Numbers(strides[k])});
  }
  return function_with(&check_definition, std::move(check));
  END_HANDLE_TH_ERRORS
}

// --- separation(written, others) -> are_apart(values) -> bool

struct Extent {
  const char *start, *end;

  bool operator<(const Extent& other) const { return start < other.start; }
};

// The memory of a tensor's storage. A storage without memory counts as one byte at its own address, where no tensor is.
std::optional<Extent> extent_of(const at::Tensor& tensor) {
  const auto* storage = tensor.has_storage() ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
  if (storage == nullptr) return std::nullopt;
  const auto* start = static_cast<const char*>(storage->data());
  if (start != nullptr) return Extent{start, start + std::max<size_t>(storage->nbytes(), 1)};
  const auto* itself = reinterpret_cast<const char*>(storage);
  return Extent{itself, itself + 1};
}

// Whether an extent overlaps one of several extents, which are sorted and disjoint.
bool meet(const std::vector<Extent>& sorted, const Extent& one) {
  const auto next = std::lower_bound(sorted.begin(), sorted.end(), Extent{one.end, one.end});
  return next != sorted.begin() && std::prev(next)->end > one.start;
}

bool are_apart(const std::vector<const at::Tensor*>& written, const std::vector<const at::Tensor*>& others) {
  std::vector<Extent> used;
  for (const auto* tensor : written) {
    if (const auto extent = extent_of(*tensor)) used.push_back(*extent);
  }
  std::sort(used.begin(), used.end());
  const auto overlap = [](const Extent& one, const Extent& next) { return one.end > next.start; };
  if (std::adjacent_find(used.begin(), used.end(), overlap) != used.end()) return false;
  return std::none_of(others.begin(), others.end(), [&](const at::Tensor* tensor) {
    const auto extent = extent_of(*tensor);
    return extent && meet(used, *extent);
  });
}

struct Separation {
  Positions written, others;
};

PyObject* check_separation(PyObject* self, PyObject* values) {
  HANDLE_TH_ERRORS
  const Items items(values);
  const auto& [written, others] = state_of<Separation>(self);
  const auto some = written.in(items), rest = others.in(items);
  try {
    return PyBool_FromLong(are_apart(some, rest));
  } catch (const c10::Error&) {  // a tensor does not tell its address
    Py_RETURN_FALSE;
  }
  END_HANDLE_TH_ERRORS
}

PyMethodDef separation_definition = {"are_apart", check_separation, METH_O, "Whether storages are disjoint from written ones."};

PyObject* separation(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *written, *others;
  if (!PyArg_ParseTuple(arguments, "OO", &written, &others)) return nullptr;
  return function_with(&separation_definition, std::make_unique<Separation>(Separation{Positions(written), Positions(others)}));
  END_HANDLE_TH_ERRORS
}

// --- sharing(positions) -> pattern(values) -> bytes or None

// Numbers objects in order of first use: the same pattern at other addresses gives the same numbers.
struct Numbering {
  std::unordered_map<const void*, int64_t> numbers;
  const void* last = nullptr;
  int64_t last_number = -1;

  // The number of an object, and whether it is new; a null pointer has number -1.
  std::pair<int64_t, bool> operator()(const void* object) {
    if (object == nullptr) return {-1, false};
    if (object == last) return {last_number, false};
    const auto [found, is_new] = numbers.try_emplace(object, static_cast<int64_t>(numbers.size()));
    last = object;
    last_number = found->second;
    return {last_number, is_new};
  }
};

const void* counter_of(const at::TensorBase& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  static_assert(sizeof(version) == sizeof(void*), "a version is a pointer to its counter");
  const void* counter;
  std::memcpy(&counter, &version, sizeof(counter));
  return counter;
}

// The storages, version counters and bases of tensors, as numbers that do not depend on addresses.
struct Pattern {
  Numbering storages, counters, roots;
  std::vector<int64_t> text;

  void add(const at::Tensor& tensor) {
    const at::TensorBase& root = tensor.is_view() ? tensor._base() : tensor;
    const auto [number, is_new] = roots(root.unsafeGetTensorImpl());
    text.insert(text.end(), {number, is_new, &root == &tensor});
    describe(tensor);
    if (is_new && &root != &tensor) describe(root);
  }
  void describe(const at::TensorBase& tensor) {
    TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.key_set().has(c10::DispatchKey::Python), "no plain tensor");
    const auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const auto [number, is_new] = storages(storage);
    text.insert(text.end(), {number, is_new ? static_cast<int64_t>(storage->nbytes()) : -1, counters(counter_of(tensor)).first,
                             static_cast<int64_t>(tensor.scalar_type()), tensor.storage_offset(), tensor.requires_grad(),
                             tensor.is_leaf(), tensor.dim()});
    text.insert(text.end(), tensor.sizes().begin(), tensor.sizes().end());
    text.insert(text.end(), tensor.strides().begin(), tensor.strides().end());
  }
};

PyObject* find_pattern(PyObject* self, PyObject* values) {
  HANDLE_TH_ERRORS
  const Items items(values);
  const auto tensors = state_of<Positions>(self).in(items);
  Pattern pattern;
  pattern.text.reserve(16 * tensors.size());
  try {
    for (const auto* tensor : tensors) pattern.add(*tensor);
  } catch (const c10::Error&) {  // a tensor does not tell
    Py_RETURN_NONE;
  }
  const auto* start = reinterpret_cast<const char*>(pattern.text.data());
  return PyBytes_FromStringAndSize(start, static_cast<Py_ssize_t>(pattern.text.size() * sizeof(int64_t)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef pattern_definition = {"pattern", find_pattern, METH_O, "How tensors share memory, version counters and bases."};

PyObject* sharing(PyObject*, PyObject* positions) {
  HANDLE_TH_ERRORS
  return function_with(&pattern_definition, std::make_unique<Positions>(positions));
  END_HANDLE_TH_ERRORS
}

// --- Functions without a state

PyObject* in_vmap_mode(PyObject*, PyObject*) {
  return PyBool_FromLong(c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::VmapMode));
}

// The number is another one if one of these is another: torch has five kernels of attention and five precisions.
PyObject* settings_number(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  auto& context = at::globalContext();
  const bool flags[] = {c10::InferenceMode::is_enabled(),
                        context.userEnabledFlashSDP(),
                        context.userEnabledMemEfficientSDP(),
                        context.userEnabledMathSDP(),
                        context.userEnabledCuDNNSDP(),
                        context.userEnabledOverrideableSDP(),
                        context.allowFP16BF16ReductionMathSDP(),
                        context.userEnabledCuDNN(),
                        context.benchmarkCuDNN(),
                        context.deterministicCuDNN(),
                        context.userEnabledMkldnn(),
                        context.deterministicMkldnn(),
                        context.deterministicFillUninitializedMemory(),
                        context.allowFP16AccumulationCuBLAS(),
                        at::impl::PythonTorchFunctionTLS::stack_len() > 0};
  const auto precision = context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV);
  uint64_t number = static_cast<uint64_t>(precision);
  for (const auto kernel : context.sDPPriorityOrder()) number = number << 3 | static_cast<uint64_t>(kernel);
  for (const bool flag : flags) number = number << 1 | static_cast<uint64_t>(flag);
  return PyLong_FromUnsignedLongLong(number);
  END_HANDLE_TH_ERRORS
}

PyObject* below_autograd(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "expected a function and its argument, got %zd values", count);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return PyObject_CallOneArg(arguments[0], arguments[1]);
}

PyObject* versions_of(PyObject*, PyObject* values) {
  HANDLE_TH_ERRORS
  const Items items(values);
  THPObjectPtr versions(PyList_New(items.size()));
  if (!versions) throw python_error();
  for (Py_ssize_t k = 0; k < items.size(); ++k) {
    PyObject* version = PyLong_FromLongLong(tensor_of(items[k])._version());
    if (version == nullptr) throw python_error();
    PyList_SET_ITEM(versions.get(), k, version);
  }
  return versions.release();
  END_HANDLE_TH_ERRORS
}

// A part of a storage as a storage of its own, which keeps the other one alive.
c10::Storage part_of(c10::StorageImpl* whole, size_t first, size_t bytes) {
  TORCH_CHECK_INDEX(first <= whole->nbytes() && bytes <= whole->nbytes() - first, "the memory ends before");
  auto* start = static_cast<char*>(whole->mutable_data());
  if (start != nullptr) start += first;
  c10::raw::intrusive_ptr::incref(whole);
  const auto release = [](void* owner) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(owner)); };
  at::DataPtr memory(start, whole, release, whole->device());
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(memory), whole->allocator(), false);
}

PyObject* synthetic_base(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 4 && THPDtype_Check(arguments[3]), "expected a tensor, two numbers of bytes and a dtype");
  const at::Tensor& member = tensor_of(arguments[0]);
  const auto dtype = reinterpret_cast<THPDtype*>(arguments[3])->scalar_type;
  const int64_t first = member.storage_offset() * member.itemsize() + integer_of(arguments[1]);
  const int64_t bytes = integer_of(arguments[2]);
  const c10::InferenceMode normal(false);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto storage = part_of(member.storage().unsafeGetStorageImpl(), first, bytes);
  at::Tensor base = at::empty({0}, member.options().dtype(dtype));
  base.set_(storage, 0, {bytes / static_cast<int64_t>(base.itemsize())}, {1});
  return THPVariable_Wrap(base);
  END_HANDLE_TH_ERRORS
}

PyObject* gradients_of(PyObject*, PyObject* values) {
  HANDLE_TH_ERRORS
  const Items items(values);
  THPObjectPtr gradients(PyTuple_New(items.size()));
  if (!gradients) throw python_error();
  for (Py_ssize_t k = 0; k < items.size(); ++k) {
    const at::Tensor& tensor = tensor_of(items[k]);
    PyObject* gradient = THPVariable_Wrap(tensor.is_leaf() ? tensor.grad() : at::Tensor());
    if (gradient == nullptr) throw python_error();
    PyTuple_SET_ITEM(gradients.get(), k, gradient);
  }
  return gradients.release();
  END_HANDLE_TH_ERRORS
}

bool same_entries(PyObject* table, PyObject* const* keys, PyObject* const* values) {
  PyObject *key, *value;
  Py_ssize_t place = 0;
  for (Py_ssize_t k = 0; PyDict_Next(table, &place, &key, &value); ++k) {
    if (key != keys[k] || value != values[k]) return false;
  }
  return true;
}

PyObject* same_contents(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 4, "expected tables, lengths, keys and values, got ", count, " arguments");
  const Items tables(arguments[0]), lengths(arguments[1]), keys(arguments[2]), values(arguments[3]);
  Py_ssize_t start = 0;
  for (Py_ssize_t k = 0; k < tables.size(); ++k) {
    PyObject* table = tables[k];
    TORCH_CHECK_TYPE(PyDict_CheckExact(table), "expected a plain dictionary, got ", Py_TYPE(table)->tp_name);
    const Py_ssize_t length = integer_of(lengths[k]);
    TORCH_CHECK_INDEX(start + length <= std::min(keys.size(), values.size()), "the lengths exceed the keys or values");
    if (PyDict_Size(table) != length) Py_RETURN_FALSE;
    if (!same_entries(table, keys.begin() + start, values.begin() + start)) Py_RETURN_FALSE;
    start += length;
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

auto* same_contents_function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(same_contents));

auto* synthetic_base_function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(synthetic_base));

auto* below_autograd_function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(below_autograd));

PyMethodDef functions[] = {
    {"tensor_check", tensor_check, METH_VARARGS, "tensor_check(tensors, sizes, strides) -> check(values) -> bool"},
    {"separation", separation, METH_VARARGS, "separation(written, others) -> are_apart(values) -> bool"},
    {"sharing", sharing, METH_O, "sharing(positions) -> pattern(values) -> bytes or None"},
    {"attaching", attaching, METH_VARARGS, "attaching(apply, leading, kinds) -> attach(*arguments) -> outputs"},
    {"applying", applying, METH_VARARGS, "applying(...) -> apply(node, *tangents) -> gradients, for the class of a node"},
    {"are_wanted", are_wanted, METH_O, "are_wanted(nodes) -> tuple of bool: whether the running backward executes each"},
    {"in_vmap_mode", in_vmap_mode, METH_NOARGS, "in_vmap_mode() -> bool"},
    {"settings_number", settings_number, METH_NOARGS, "settings_number() -> int, another one if a setting changes"},
    {"below_autograd", below_autograd_function, METH_FASTCALL, "below_autograd(function, value) -> function(value)"},
    {"synthetic_base", synthetic_base_function, METH_FASTCALL, "synthetic_base(member, start, bytes, dtype) -> flat tensor"},
    {"same_contents", same_contents_function, METH_FASTCALL, "same_contents(tables, lengths, keys, values) -> bool"},
    {"gradients_of", gradients_of, METH_O, "gradients_of(tensors) -> tuple of the gradients of leaves, None for others"},
    {"versions_of", versions_of, METH_O, "versions_of(tensors) -> list of int"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "library", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_library() {
  return PyModule_Create(&definition);
}
