// The least that a call with a compiled forward and backward costs: a node without an object in Python, which saves tensors
// and runs a callable. No hooks, no checks, one backward: `overhead.py` measures it as the floor. Without gradients, what else a
// call does: it changes an argument, and makes views.

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/extension.h>

namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

py::list list_of(const variable_list& values) {
  py::list list(values.size());
  for (size_t k = 0; k < values.size(); ++k) list[k] = values[k];
  return list;
}

py::object run_below_autograd(const py::handle& run, const py::list& inputs) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return run(inputs);
}

struct BareNode : Node {
  py::handle backward;  // the caller keeps it
  std::vector<SavedVariable> saved;

  variable_list apply(variable_list&& tangents) override {
    const py::gil_scoped_acquire gil;
    variable_list inputs;
    for (const SavedVariable& value : saved) inputs.push_back(value.unpack());
    inputs.push_back(tangents.at(0));
    saved.clear();
    return run_below_autograd(backward, list_of(inputs)).cast<variable_list>();
  }
};

// Runs `forward`, whose first `results` values are results and the others saved. Returns the results.
variable_list call(const py::function& forward, const py::function& backward, size_t results, const variable_list& inputs) {
  auto values = run_below_autograd(forward, list_of(inputs)).cast<variable_list>();
  const auto node = c10::make_intrusive<BareNode>();
  node->backward = backward;
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (size_t k = results; k < values.size(); ++k) node->saved.emplace_back(values[k], false);
  values.resize(results);
  for (const at::Tensor& value : values) torch::autograd::set_history(value, node);
  return values;
}

// Runs `forward` on the memory of `changed`, seen as `places` lie in theirs. Its first value is that of `changed`, its last the
// result; it saves nothing.
at::Tensor change(const py::function& forward, const at::Tensor& changed, const variable_list& places) {
  variable_list values;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    variable_list inputs;
    for (const at::Tensor& place : places) {
      inputs.push_back(changed.as_strided(place.sizes(), place.strides(), place.storage_offset()));
    }
    values = forward(list_of(inputs)).cast<variable_list>();
  }
  changed.copy_(values.front());
  return values.back();
}

variable_list rows(const at::Tensor& tensor, const std::vector<int64_t>& indices) {
  variable_list found;
  for (const int64_t k : indices) found.push_back(tensor.select(0, k));
  return found;
}

}  // namespace

PYBIND11_MODULE(bare_node, module) {
  module.def("call", call);
  module.def("change", change);
  module.def("rows", rows);
}
