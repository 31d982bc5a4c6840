// The autograd node of a compiled segment, made, filled and run from C++.
//
// `Segment` in runtime/autograd.py says what such a node is, and does everything that is rare: here are the usual call and
// the usual backwards. A node is that of an autograd function in Python, with all that users see of it.

#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/TracerMode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "values.h"

namespace {

using torch::autograd::Node;

// Whether the constructor of a class of nodes makes the node, too, as torch does since it counts references in nodes.
// Where it does not, nothing is attached here: Python asks before.
template <class Function>
constexpr bool makes_node = std::is_same_v<decltype(Function::cdata), c10::intrusive_ptr<Node>>;

template <class Function>
Node* node_of(const Function& function) {
  if constexpr (requires { function.cdata.lock(); }) {
    return function.cdata.lock().get();
  } else {
    return function.cdata.get();
  }
}

// Inside a transform of `torch.func`, or a batched backward.
bool in_transform() {
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return included.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) || included.has(c10::DispatchKey::VmapMode);
}

// Whether nodes are made and run in another way than usual.
bool is_observed_or_transformed() {
  return torch::autograd::AnomalyMode::is_enabled() || in_transform() ||
      torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

void set_attribute(PyObject* object, PyObject* name, PyObject* value) {
  if (PyObject_SetAttr(object, name, value) != 0) throw python_error();
}

PyObject* name_of(const char* text) {
  return PyUnicode_InternFromString(text);
}

// The attributes of nodes.
struct Names {
  PyObject *recomputation = name_of("recomputation"), *kept = name_of("kept"), *ran = name_of("ran");
  PyObject* is_differentiated = name_of("is_differentiated");
  PyObject* details[4] = {name_of("sizes"), name_of("layouts"), name_of("memory"), name_of("watched")};

  static const Names& all() {
    static const Names names;
    return names;
  }
};

// --- attaching(apply, leading, kinds) -> attach(backward, outputs, saved, recomputation, details, *inputs) -> outputs
//
// What `Segment.apply` does. `kinds` has (backward, class of its nodes, whether undefined tangents become zeros); `leading`
// is the number of arguments before the inputs.

struct Outputs {
  Items items;

  explicit Outputs(PyObject* values) : items(values) {}

  // Whether the node just becomes their history. An argument that is returned, and a view, need more.
  bool are_fresh() const {
    return std::all_of(items.begin(), items.end(), [](PyObject* value) {
      const at::Tensor& tensor = tensor_of(value);
      return !tensor.requires_grad() && !tensor.is_view() && !tensor.is_nested() &&
          torch::autograd::isDifferentiableType(tensor.scalar_type());
    });
  }
};

std::vector<c10::IValue> values_for_profiler(PyObject* const* inputs, Py_ssize_t count) {
  std::vector<c10::IValue> values;
  for (Py_ssize_t k = 0; k < count; ++k) values.emplace_back(tensor_of(inputs[k]));
  return values;
}

THPObjectPtr flags(Py_ssize_t leading, Py_ssize_t inputs) {
  THPObjectPtr result(PyTuple_New(leading + inputs));
  if (!result) throw python_error();
  for (Py_ssize_t k = 0; k < leading + inputs; ++k) PyTuple_SET_ITEM(result.get(), k, PyBool_FromLong(k >= leading));
  return result;
}

// A node is about to be filled: its inputs and their edges, all of which require grad.
struct Inputs {
  PyObject* const* values;
  Py_ssize_t leading, count;
  torch::autograd::edge_list edges;

  bool require_grad() {
    edges.reserve(count);
    for (Py_ssize_t k = 0; k < count; ++k) {
      const at::Tensor& tensor = tensor_of(values[k]);
      if (!tensor.requires_grad()) return false;
      edges.push_back(torch::autograd::impl::gradient_edge(tensor));
    }
    return count > 0;
  }
};

template <class Function>
void fill(Function& function, Inputs& inputs, const Items& outputs, const Items& saved, bool materialize) {
  if constexpr (makes_node<Function>) {
    const auto& node = function.cdata;
    node->set_next_edges(std::move(inputs.edges));
    function.is_variable_input.resize(inputs.leading);
    function.is_variable_input.resize(inputs.leading + inputs.count, true);
    function.needs_input_grad = flags(inputs.leading, inputs.count).release();
    function.materialize_grads = materialize;
    function.input_info.reserve(inputs.count);
    for (Py_ssize_t k = 0; k < inputs.count; ++k) function.input_info.emplace_back(tensor_of(inputs.values[k]));
    for (PyObject* output : outputs) {
      torch::autograd::set_history(tensor_of(output), node);
      function.output_info.emplace_back(tensor_of(output));
    }
    function.saved_variables.reserve(saved.size());
    for (PyObject* value : saved) {
      const at::Tensor& tensor = tensor_of(value);
      const bool is_output = tensor.grad_fn().get() == node.get();  // a node must not own itself
      function.saved_variables.emplace_back(tensor, is_output);
    }
  }
}

// The kind of the nodes of a backward; null if Python makes them.
PyObject* kind_of(PyObject* kinds, PyObject* backward) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kinds); ++k) {
    PyObject* kind = PyTuple_GET_ITEM(kinds, k);
    if (PyTuple_GET_ITEM(kind, 0) == backward) return kind;
  }
  return nullptr;
}

void set_details(PyObject* node, PyObject* details) {
  const Items values(details);
  for (Py_ssize_t k = 0; k < 4; ++k) set_attribute(node, Names::all().details[k], values[k]);
}

PyObject* attach(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  PyObject *apply = PyTuple_GET_ITEM(self, 0), *kinds = PyTuple_GET_ITEM(self, 2);
  const Py_ssize_t leading = integer_of(PyTuple_GET_ITEM(self, 1));
  TORCH_CHECK_TYPE(count >= leading, "expected ", leading, " arguments or more, got ", count);
  PyObject* kind = kind_of(kinds, arguments[0]);
  const Outputs outputs(arguments[1]);
  const Items saved(arguments[2]);
  Inputs inputs{arguments + leading, leading, count - leading, {}};
  const bool is_usual = kind != nullptr && at::GradMode::is_enabled() && !is_observed_or_transformed() &&
      !at::tracer::impl::is_dispatch_enabled() && PyTuple_CheckExact(arguments[1]);
  if (!is_usual || !outputs.are_fresh() || !inputs.require_grad()) {
    return PyObject_Vectorcall(apply, arguments, count, nullptr);
  }
  RECORD_FUNCTION("Segment", values_for_profiler(inputs.values, inputs.count), at::sequence_number::peek());
  THPObjectPtr node(PyObject_CallNoArgs(PyTuple_GET_ITEM(kind, 1)));
  if (!node) throw python_error();
  set_attribute(node.get(), Names::all().recomputation, arguments[3]);
  if (!Py_IsNone(arguments[4])) set_details(node.get(), arguments[4]);
  fill(*reinterpret_cast<THPFunction*>(node.get()), inputs, outputs.items, saved, Py_IsTrue(PyTuple_GET_ITEM(kind, 2)));
  return Py_NewRef(arguments[1]);
  END_HANDLE_TH_ERRORS
}

auto* attach_function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(attach));

PyMethodDef attach_definition = {"attach", attach_function, METH_FASTCALL, "Make the autograd node of a segment."};

PyObject* attaching(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *apply, *leading, *kinds;
  if (!PyArg_ParseTuple(arguments, "OO!O!", &apply, &PyLong_Type, &leading, &PyTuple_Type, &kinds)) return nullptr;
  for (PyObject* kind : Items(kinds)) {
    const bool is_kind = PyTuple_CheckExact(kind) && PyTuple_GET_SIZE(kind) == 3 && PyType_Check(PyTuple_GET_ITEM(kind, 1));
    TORCH_CHECK_TYPE(is_kind, "expected (backward, class, bool), got ", Py_TYPE(kind)->tp_name);
    auto* type = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(kind, 1));
    TORCH_CHECK_TYPE(PyType_IsSubtype(type, &THPFunctionType), type->tp_name, " is no class of autograd nodes");
  }
  return PyCFunction_New(&attach_definition, arguments);
  END_HANDLE_TH_ERRORS
}

// --- applying(apply, callback, graphs, layouts, positions, sizes, saved, tangents, leading, has_sentinel)
//         -> apply(node, *tangents)
//
// The method `apply` of a class of nodes, which runs backwards that do no more than run a graph, or a derivative. `graphs`
// has what to run for the tangents that are there, the gradients that are wanted, and whether a graph is created for them; a
// key is bytes with 0 or 1 for each of them:
//
//     graphs[key] -> (run, chooses, inputs, ran, release)
//     graphs[key] -> derivative(node, recomputation, saved, tangents) -> results of the node        if a graph is created
//
// `run` is the compiled graph, or, if `chooses`, a function that finds it for its inputs. `inputs` are positions among sizes,
// saved tensors and tangents; `None` stands for all. After a backward that frees what the node has saved, `ran` is the
// attribute of that name; `release` does that instead if other backwards need some of it. A derivative gets all that the
// node has saved. Everything else, and keys whose value is `None`, are for `apply`, the method in Python; so are all
// backwards of a thread in which Dynamo sees frames, as `callback` says, since it would compile those of the graph.

// The size and stride of a tangent in the trace.
struct Layout {
  std::vector<int64_t> size, stride;

  explicit Layout(PyObject* pair) : size(integers_of(Items(pair)[0])), stride(integers_of(Items(pair)[1])) {}

  // A tangent as it was traced. The result of `sum` passes one without strides, for example.
  THPObjectPtr apply_to(PyObject* value) const {
    if (Py_IsNone(value)) return THPObjectPtr::dup(value);
    const at::Tensor& tensor = THPVariable_Unpack(value);
    if (tensor.strides() == stride && !tensor.is_conj() && !tensor.is_neg()) return THPObjectPtr::dup(value);
    return THPObjectPtr(THPVariable_Wrap(at::empty_strided(size, stride, tensor.options()).copy_(tensor)));
  }
};

std::vector<Layout> layouts_of(PyObject* pairs) {
  std::vector<Layout> layouts;
  for (PyObject* pair : Items(pairs)) layouts.emplace_back(pair);
  return layouts;
}

bool autocast_is_enabled() {
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has_all(c10::autocast_dispatch_keyset);
}

THPObjectPtr attribute(PyObject* object, PyObject* name) {
  THPObjectPtr value(PyObject_GetAttr(object, name));
  if (!value) throw python_error();
  return value;
}

// What all nodes of a segment have in common.
struct UsualBackward {
  std::vector<Layout> layouts;         // of the tangents; none if each node has its own
  std::vector<int64_t> positions;      // of the node's gradients among the results of the graph
  Py_ssize_t sizes, saved, tangents;   // their numbers
  Py_ssize_t leading;                  // arguments of `Segment.apply` before its inputs, which have no gradient
  int has_sentinel;

  bool are_plain(PyObject* const* values, Py_ssize_t count) const {
    return count == tangents && std::all_of(values, values + count, [](PyObject* value) {
      if (Py_IsNone(value)) return true;
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != THPVariableClass) return false;
      return THPVariable_Unpack(value).layout() == at::kStrided;
    });
  }

  // Which tangents are there, along which edges the backward passes a gradient, and whether it creates a graph. Nobody wants
  // the gradient of the sentinel.
  THPObjectPtr key(PyObject* const* values, const Node& node) const {
    const auto gradients = static_cast<Py_ssize_t>(positions.size());
    TORCH_CHECK_INDEX(node.num_outputs() == positions.size() + has_sentinel, "expected ", gradients, " edges");
    THPObjectPtr result(PyBytes_FromStringAndSize(nullptr, tangents + gradients + 1));
    if (!result) throw python_error();
    char* flag = PyBytes_AS_STRING(result.get());
    for (Py_ssize_t k = 0; k < tangents; ++k) *flag++ = !Py_IsNone(values[k]);
    const bool all = torch::autograd::get_current_graph_task_exec_info()->empty();
    for (Py_ssize_t k = 0; k < gradients; ++k) *flag++ = all || node.task_should_compute_output(has_sentinel + k);
    *flag = at::GradMode::is_enabled();
    return result;
  }

  // The graph's results -> the node's: none for the arguments before its inputs.
  PyObject* results_of_node(const Items& results) const {
    const Py_ssize_t before = leading + has_sentinel;
    THPObjectPtr gradients(PyTuple_New(before + static_cast<Py_ssize_t>(positions.size())));
    if (!gradients) throw python_error();
    for (Py_ssize_t k = 0; k < before; ++k) PyTuple_SET_ITEM(gradients.get(), k, Py_NewRef(Py_None));
    for (size_t k = 0; k < positions.size(); ++k) {
      PyTuple_SET_ITEM(gradients.get(), before + k, Py_NewRef(results[positions[k]]));
    }
    return gradients.release();
  }
};

// A saved tensor. Raises if it was changed in place.
template <class Function>
THPObjectPtr unpack(const Function& function, Py_ssize_t position) {
  if constexpr (makes_node<Function>) {
    return THPObjectPtr(THPVariable_Wrap(function.saved_variables.at(position).unpack(function.cdata)));
  } else {
    return THPObjectPtr();
  }
}

// The inputs of a running backward. Only those that a graph takes are unpacked: others may have been changed in place.
struct BackwardInputs {
  const UsualBackward& usual;
  PyObject *node, *const *tangents;
  std::optional<Items> sizes;
  std::vector<Layout> layouts;  // the node's own

  BackwardInputs(const UsualBackward& usual, PyObject* node, PyObject* const* tangents)
      : usual(usual), node(node), tangents(tangents) {
    if (usual.sizes > 0) sizes.emplace(attribute(node, Names::all().details[0]).get());
    if (usual.layouts.empty()) layouts = layouts_of(attribute(node, Names::all().details[1]).get());
  }
  THPObjectPtr at(int64_t position) const {
    if (position < usual.sizes) return THPObjectPtr::dup((*sizes)[position]);
    position -= usual.sizes;
    if (position < usual.saved) return unpack(*reinterpret_cast<const THPFunction*>(node), position);
    position -= usual.saved;
    TORCH_CHECK_INDEX(position < usual.tangents, "there is no tangent ", position, " among ", usual.tangents);
    return (layouts.empty() ? usual.layouts : layouts).at(position).apply_to(tangents[position]);
  }
  THPObjectPtr all() const {
    std::vector<int64_t> positions(usual.sizes + usual.saved + usual.tangents);
    std::iota(positions.begin(), positions.end(), 0);
    return list(positions);
  }
  THPObjectPtr list(const std::vector<int64_t>& positions) const {
    THPObjectPtr values(PyList_New(static_cast<Py_ssize_t>(positions.size())));
    if (!values) throw python_error();
    for (size_t k = 0; k < positions.size(); ++k) {
      PyObject* value = at(positions[k]).release();
      if (value == nullptr) throw python_error();
      PyList_SET_ITEM(values.get(), static_cast<Py_ssize_t>(k), value);
    }
    return values;
  }
};

// What a node has saved is freed, as far as no other backward needs it.
void release(PyObject* node, PyObject* ran, PyObject* in_python) {
  if (!Py_IsNone(in_python)) {
    if (!THPObjectPtr(PyObject_CallOneArg(in_python, node))) throw python_error();
    return;
  }
  set_attribute(node, Names::all().ran, ran);
  set_attribute(node, Names::all().recomputation, Py_None);
  node_of(*reinterpret_cast<THPFunction*>(node))->release_variables();
}

PyObject* run_graph(const UsualBackward& usual, const Items& graph, PyObject* node, PyObject* const* tangents) {
  const BackwardInputs inputs(usual, node, tangents);
  THPObjectPtr values = Py_IsNone(graph[2]) ? inputs.all() : inputs.list(integers_of(graph[2]));
  const bool is_last = !torch::autograd::get_current_graph_task_keep_graph();
  auto run = THPObjectPtr::dup(graph[0]);
  if (Py_IsTrue(graph[1])) run = PyObject_CallFunctionObjArgs(run.get(), values.get(), is_last ? Py_True : Py_False, nullptr);
  if (!run) throw python_error();
  if (is_last && usual.saved > 0) release(node, graph[3], graph[4]);
  THPObjectPtr results;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    results = PyObject_CallOneArg(run.get(), values.get());
  }
  if (!results) throw python_error();
  return usual.results_of_node(Items(results.get()));
}

// All that a node has saved; null if something of it was freed or changed in place, or is packed by a hook.
template <class Function>
THPObjectPtr all_saved(const Function& function) {
  const auto& saved = function.saved_variables;
  const auto is_packed = [](const auto& value) { return value.has_hooks(); };
  if (function.has_freed_buffers || std::any_of(saved.begin(), saved.end(), is_packed)) return THPObjectPtr();
  THPObjectPtr values(PyTuple_New(static_cast<Py_ssize_t>(saved.size())));
  if (!values) throw python_error();
  try {
    for (size_t k = 0; k < saved.size(); ++k) {
      PyObject* value = unpack(function, static_cast<Py_ssize_t>(k)).release();
      if (value == nullptr) throw python_error();
      PyTuple_SET_ITEM(values.get(), static_cast<Py_ssize_t>(k), value);
    }
  } catch (const c10::Error&) {  // changed in place
    return THPObjectPtr();
  }
  return values;
}

// The results of a node, for which a graph is created; null without an exception if Python has to compute them.
PyObject* run_derivative(PyObject* derivative, PyObject* node, PyObject* const* tangents, Py_ssize_t count) {
  THPObjectPtr call = attribute(node, Names::all().recomputation);
  if (Py_IsNone(call.get())) return nullptr;
  THPObjectPtr saved = all_saved(*reinterpret_cast<const THPFunction*>(node));
  if (!saved) return nullptr;
  THPObjectPtr values(PyTuple_New(count));
  if (!values) throw python_error();
  for (Py_ssize_t k = 0; k < count; ++k) PyTuple_SET_ITEM(values.get(), k, Py_NewRef(tangents[k]));
  PyObject* results = PyObject_CallFunctionObjArgs(derivative, node, call.get(), saved.get(), values.get(), nullptr);
  if (results == nullptr) throw python_error();
  return results;
}

bool returns_none(PyObject* function) {
  THPObjectPtr result(PyObject_CallNoArgs(function));
  if (!result) throw python_error();
  return Py_IsNone(result.get());
}

// Whether a running backward differs from others neither in the node nor in what is around it.
bool is_usual(PyObject* node) {
  if (torch::autograd::get_current_graph_task_exec_info() == nullptr || is_observed_or_transformed()) return false;
  if (!Py_IsNone(attribute(node, Names::all().kept).get())) return false;
  if (at::GradMode::is_enabled()) return torch::autograd::get_current_graph_task_keep_graph();
  return !autocast_is_enabled() && Py_IsFalse(attribute(node, Names::all().is_differentiated).get());
}

// The results of a node; null without an exception if Python has to compute them.
PyObject* run_usual(PyObject* self, PyObject* node, PyObject* const* tangents, Py_ssize_t count) {
  const auto& usual = state_of<UsualBackward>(PyTuple_GET_ITEM(self, 0));
  const auto& function = *reinterpret_cast<THPFunction*>(node);
  if (!is_usual(node) || !usual.are_plain(tangents, count) || !returns_none(PyTuple_GET_ITEM(self, 2))) return nullptr;
  THPObjectPtr key = usual.key(tangents, *node_of(function));
  THPObjectPtr graph(PyObject_GetItem(PyTuple_GET_ITEM(self, 3), key.get()));
  if (!graph) throw python_error();
  // Asked late: another thread may run the node while this one compiles the graph.
  if (Py_IsNone(graph.get()) || function.has_freed_buffers) return nullptr;
  if (at::GradMode::is_enabled()) return run_derivative(graph.get(), node, tangents, count);
  return run_graph(usual, Items(graph.get()), node, tangents);
}

PyObject* apply(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count >= 1 && PyObject_TypeCheck(arguments[0], &THPFunctionType), "expected an autograd node");
  PyObject* results = run_usual(self, arguments[0], arguments + 1, count - 1);
  return results != nullptr ? results : PyObject_Vectorcall(PyTuple_GET_ITEM(self, 1), arguments, count, nullptr);
  END_HANDLE_TH_ERRORS
}

auto* apply_function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(apply));

PyMethodDef apply_definition = {"apply", apply_function, METH_FASTCALL, "Run the backward of a node."};

PyObject* applying(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *otherwise, *callback, *graphs, *layouts, *positions;
  auto usual = std::make_unique<UsualBackward>();
  if (!PyArg_ParseTuple(arguments, "OOOOOnnnnp", &otherwise, &callback, &graphs, &layouts, &positions, &usual->sizes,
                        &usual->saved, &usual->tangents, &usual->leading, &usual->has_sentinel)) {
    return nullptr;
  }
  usual->positions = integers_of(positions);
  usual->layouts = layouts_of(layouts);
  // A tuple, since Python looks there for cycles: a graph may know the function that it is compiled for.
  THPObjectPtr self(PyTuple_Pack(4, capsule_of(std::move(usual)).get(), otherwise, callback, graphs));
  if (!self) throw python_error();
  THPObjectPtr function(PyCFunction_New(&apply_definition, self.get()));
  if (!function) throw python_error();
  return PyInstanceMethod_New(function.get());
  END_HANDLE_TH_ERRORS
}

// --- are_wanted(nodes) -> tuple of bool: whether the running backward executes each node, or returns its gradient

Node* node_of_python(PyObject* value) {
  if (PyObject_TypeCheck(value, &THPFunctionType)) return node_of(*reinterpret_cast<THPFunction*>(value));
  TORCH_CHECK_TYPE(torch::autograd::THPCppFunction_Check(value), "expected an autograd node, got ", Py_TYPE(value)->tp_name);
  return node_of(*reinterpret_cast<torch::autograd::THPCppFunction*>(value));
}

PyObject* are_wanted(PyObject*, PyObject* values) {
  HANDLE_TH_ERRORS
  const auto* executed = torch::autograd::get_current_graph_task_exec_info();
  TORCH_CHECK(executed != nullptr, "no backward is running");
  const auto& all = *torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto is_wanted = [&](PyObject* value) {
    if (Py_IsNone(value)) return false;
    Node* node = node_of_python(value);
    if (all.find(node) == all.end()) return false;
    const auto found = executed->find(node);
    return executed->empty() || (found != executed->end() && found->second.should_execute());
  };
  const Items items(values);
  THPObjectPtr answers(PyTuple_New(items.size()));
  if (!answers) throw python_error();
  for (Py_ssize_t k = 0; k < items.size(); ++k) PyTuple_SET_ITEM(answers.get(), k, PyBool_FromLong(is_wanted(items[k])));
  return answers.release();
  END_HANDLE_TH_ERRORS
}

}  // namespace
