"""Backends that keep calls of functions: one node for a call, one for its gradients, and everything else as in eager."""

from __future__ import annotations

import itertools
import operator
import runpy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.backends import Backend, CallArgument, FunctionBackend, KeptBackward
from aotgrad.backends.eager import compile_eager
from aotgrad.errors import BackendError
from aotgrad.printing.graphs import body_lines, graph_text

KEPT = {F.linear, F.layer_norm, F.scaled_dot_product_attention, F.interpolate, F.cross_entropy, F.conv2d, F.gelu, F.dropout}
BCE = F.binary_cross_entropy_with_logits
KEPT |= {BCE, torch.var, F.group_norm}
KEPT |= {torch.einsum, torch.reshape, torch.Tensor.matmul, F.batch_norm, F.relu, torch.chunk, F.embedding, torch.linalg.norm}


class Keeping(Backend):
    """Interprets graphs, and notes the kept functions in them."""

    name = "keeping"

    def __init__(self, keep=frozenset(KEPT), unsupported=()):
        self.keep, self.unsupported, self.graphs = keep, unsupported, []

    def supports(self, node):
        return node.target not in self.unsupported and getattr(node.target, "function", None) not in self.unsupported

    def compile(self, graph, inputs, role):
        self.graphs.append((role, graph))
        return torch.fx.Interpreter(graph).run

    def targets(self, role):
        nodes = [node for of, graph in self.graphs if of == role for node in calls_in(graph)]
        return [node.target for node in nodes if not is_op(node.target)]

    def kept(self, role="forward"):
        return [target.__name__ for target in self.targets(role)]


def calls_in(graph):
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def is_op(target):
    is_of_python = getattr(target, "__module__", None) == operator.getitem.__module__
    return isinstance(target, torch._ops.OpOverload) or is_of_python or target is torch.sym_float


def tensors(*shapes, **options):
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True, **options) for shape in shapes]


def results_and_gradients(function, args, order=1):
    torch.manual_seed(1)
    result = function(*args)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    leaves = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
    found = [each.float().sin().sum() for each in results if each.requires_grad]
    for _ in range(order):
        gradients = torch.autograd.grad(found, leaves, create_graph=order > 1, allow_unused=True)
        results += gradients
        found = [each.cos().sum() for each in gradients if each is not None and each.requires_grad]
    return results


def assert_like_eager(function, backend, args, order=1, dynamo=False, tolerance=None, **options):
    if dynamo:
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=aotgrad.DynamoBackend(backend), fullgraph=True)
    else:
        compiled = aotgrad.aot_function(function, backend, options=options)
    wanted, found = results_and_gradients(function, args, order), results_and_gradients(compiled, args, order)
    assert [each is None for each in found] == [each is None for each in wanted]
    pairs = [pair for pair in zip(found, wanted, strict=True) if pair[0] is not None]
    for one, other in pairs:
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
    return compiled


def assert_close_to_eager(function, compiled, args):
    torch.testing.assert_close(results_and_gradients(compiled, args), results_and_gradients(function, args))


both_frontends = pytest.mark.parametrize("dynamo", [False, True], ids=["aot_function", "dynamo"])


CASES = {
    "linear": (lambda x, w, b: F.linear(x, w, b).sin(), [(3, 4), (5, 4), (5,)], ["linear"]),
    "linear_returned": (lambda x, w, b: F.linear(x, w, b), [(2, 3, 4), (5, 4), (5,)], ["linear"]),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w), [(3, 4), (4,)], ["layer_norm"]),
    "einsum": (lambda x, w: torch.einsum("bsi,oi->sbo", x, w), [(2, 3, 4), (5, 4)], ["einsum"]),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), [(1, 2, 3, 4)], ["interpolate"]),
    "one_tensor_twice": (lambda x: x.matmul(x), [(4, 4)], ["matmul"]),
    "changed_later": (lambda x, w: F.linear(x, w).add_(1), [(2, 3, 4), (5, 4)], ["linear"]),
    "two_results": (lambda x, w: ((y := F.linear(x, w)), F.linear(y, w)), [(2, 3, 4), (4, 4)], ["linear", "linear"]),
    "reshape_that_copies": (lambda x: torch.reshape(x.t(), (12,)).sin(), [(3, 4)], ["reshape"]),
    "norm": (lambda x: torch.linalg.norm(x, 2), [(5, 5)], ["linalg_norm"]),
    "mask": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m),
        [(2, 2, 5, 8), (2, 2, 5, 8), (5, 5)],
        ["scaled_dot_product_attention"],
    ),
}


@both_frontends
@pytest.mark.parametrize("name", CASES)
def test_one_node_forward_and_one_backward(name, dynamo):
    function, shapes, kept = CASES[name]
    backend = Keeping()
    assert_like_eager(function, backend, tensors(*shapes), dynamo=dynamo)
    assert backend.kept() == kept
    assert sorted(backend.kept("backward")) == sorted(f"{each}_backward" for each in kept)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients(name):
    function, shapes, _ = CASES[name]
    assert_like_eager(function, Keeping(), tensors(*shapes), order=2)


@pytest.mark.parametrize("name", ["linear_returned", "einsum", "mask"])
def test_eager_halves_run_kept_calls(name):
    function, shapes, kept = CASES[name]
    backend = FunctionBackend("eager", compile_eager, fuses=False, keep=frozenset(KEPT))
    compiled = assert_like_eager(function, backend, tensors(*shapes))
    graph = compiled.plans()[0].executable.partition.forward.module.graph
    assert kept[0] in {getattr(node.target, "__name__", None) for node in graph.nodes}


GROUP_NORM = (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 4, 5), (4,), (4,)], ["group_norm"])

APART = {
    "draws": (lambda x: F.dropout(x, 0.5), [(3, 4)]),
    "draws_inside": (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), [(2, 2, 5, 8)]),
    "view": (lambda x: torch.reshape(x, (12,)) * 2, [(3, 4)]),
    "views": (lambda x: [each.sin() for each in torch.chunk(x, 2)], [(4, 4)]),
    "its_argument": (lambda x: F.dropout(x, 0.5, training=False), [(3, 4)]),
    "changes_its_argument": (lambda x: F.relu(x * 2, inplace=True), [(3, 4)]),
    "permuted": (lambda x: torch.einsum("bi->ib", x).sin(), [(3, 4)]),
}


@both_frontends
@pytest.mark.parametrize("name", APART)
def test_other_calls_are_taken_apart(name, dynamo):
    function, shapes = APART[name]
    backend = Keeping()
    assert_like_eager(function, backend, tensors(*shapes), dynamo=dynamo)
    assert backend.kept() == [] == backend.kept("backward")


def test_buffers_change_as_in_eager():
    def function(x, mean, var):
        return F.batch_norm(x, mean, var, training=True).sin()

    states = []
    for run in (function, aotgrad.aot_function(function, Keeping())):
        (x,), state = tensors((3, 4)), [torch.zeros(4), torch.ones(4)]
        run(x, *state).sum().backward()
        states.append([*state, x.grad])
    torch.testing.assert_close(*states)


def test_no_gradient_is_none_and_some_are_not_wanted():
    x, w, unused = tensors((2, 3, 4), (5, 4), (2,))
    backend = Keeping()
    compiled = aotgrad.aot_function(lambda x, w, unused: F.linear(x, w), backend)
    (gradient,) = torch.autograd.grad(compiled(x, w, unused).sin().sum(), w)
    torch.testing.assert_close(gradient, torch.autograd.grad(F.linear(x, w).sin().sum(), w)[0])
    (narrow,) = backend.targets("backward")
    assert narrow.outputs == ("args[1]",) and narrow.inputs == ("tangent", "args[0]")
    assert_like_eager(lambda x, w, unused: F.linear(x.detach(), w), Keeping(), [x, w, unused])


@both_frontends
def test_under_autocast_the_casts_are_around_the_call(dynamo):
    def function(x, w, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(F.linear(x, w, b), w)

    backend, args = Keeping(), tensors((2, 3, 4), (4, 4), (4,))
    found = assert_like_eager(function, backend, args, dynamo=dynamo, tolerance=0.05)(*args)
    assert found.dtype is torch.bfloat16 and backend.kept() == ["linear", "linear"]
    assert backend.kept("backward") == ["linear_backward", "linear_backward"]


def test_under_autocast_with_symbolic_sizes():
    def function(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w).sin()

    backend = Keeping()
    assert_like_eager(function, backend, tensors((2, 3, 4), (5, 4)), tolerance=0.05, dynamic=True)
    assert backend.kept() == ["linear"] and backend.kept("backward") == ["linear_backward"]


def test_casts_inside_of_a_call_take_it_apart():
    def function(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.einsum("bi,oi->bo", x, w)

    backend = Keeping()
    assert_like_eager(function, backend, tensors((3, 4), (5, 4)), tolerance=0.05)
    assert backend.kept() == []


SYMBOLIC = {
    "mask": CASES["mask"],
    # The engine adds terms inside of its backward, one of which is the tangent.
    "interpolate": (CASES["interpolate"][0], [(2, 2, 3, 4)], ["interpolate"]),
    "loss": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), [(3, 4), (3, 4)], [BCE.__name__]),
    "variance": (lambda x: torch.var(x, 1).sin(), [(3, 4)], ["var"]),
    "same": (lambda x, w: F.conv2d(x, w, padding="same").sin(), [(2, 3, 6, 6), (4, 3, 2, 2)], ["conv2d"]),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("name", SYMBOLIC)
def test_backwards_that_compute_with_sizes_are_one_node(name):
    function, shapes, kept = SYMBOLIC[name]
    backend = Keeping()
    compiled = assert_like_eager(function, backend, tensors(*shapes), dynamic=True)
    assert backend.kept() == kept and backend.kept("backward") == [f"{each}_backward" for each in kept]
    shape, *others = shapes
    longer = tensors((shape[0] + 2, *shape[1:]), *([(shape[0] + 2, *o[1:]) if o == shape else o for o in others]))
    assert_close_to_eager(function, compiled, longer)
    assert len(compiled.plans()) == 1


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("name", ["linear_returned", "einsum", "group_norm", "same"])
def test_gradients_of_gradients_with_symbolic_sizes(name):
    function, shapes, _ = {**CASES, **SYMBOLIC, "group_norm": GROUP_NORM}[name]
    assert_like_eager(lambda *args: function(*args).sin(), Keeping(), tensors(*shapes), order=2, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_call_that_returns_none_beside_a_tensor(dynamic, dtype):
    def function(x, w, bias, out, out_bias):
        projections = (w, bias, None, None, False, 0.0, out, out_bias)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not torch.float32):
            result, weights = F.multi_head_attention_forward(x, x, x, 8, 2, *projections, need_weights=False)
        assert weights is None
        return result.sin()

    backend, args = Keeping({F.multi_head_attention_forward}), tensors((5, 2, 8), (24, 8), (24,), (8, 8), (8,))
    tolerance = None if dtype is torch.float32 else 0.05
    compiled = assert_like_eager(function, backend, args, tolerance=tolerance, dynamic=dynamic)
    assert compiled(*args).dtype is dtype
    assert backend.kept() == ["multi_head_attention_forward"]
    (target,) = backend.targets("backward")
    assert target.inputs[:2] == ("tangent", "args[0], args[1], args[2]")


def test_a_call_that_returns_none_behind_dynamo():
    layer, (x,) = nn.MultiheadAttention(8, 2), tensors((5, 2, 8))
    backend = Keeping({F.multi_head_attention_forward})
    assert_like_eager(lambda x: layer(x, x, x, need_weights=False)[0].sin(), backend, [x], dynamo=True)
    assert backend.kept() == ["multi_head_attention_forward"]


def test_under_vmap_a_call_is_taken_apart():
    function = lambda x, w: torch.vmap(lambda x: F.linear(x, w).sin())(x)  # noqa: E731
    backend = Keeping()
    assert_like_eager(function, backend, tensors((2, 3, 4), (5, 4)))
    assert backend.kept() == [] == backend.kept("backward")


@pytest.mark.parametrize("name", ["linear", "linear_returned", "reshape_that_copies"])
def test_symbolic_sizes(name):
    function, shapes, kept = CASES[name]
    backend = Keeping()
    compiled = assert_like_eager(function, backend, tensors(*shapes), dynamic=True)
    assert set(kept) <= set(backend.kept())
    (first, *rest) = shapes
    args = tensors((first[0] + 4, *first[1:]), *rest) if name != "reshape_that_copies" else tensors(first)
    assert_close_to_eager(function, compiled, args)
    assert len(compiled.plans()) == 1


@both_frontends
def test_a_checkpoint_recomputes_whole_calls(dynamo):
    def region(x, v, w):
        return F.linear(F.linear(x, v).sin(), w).cos()

    def function(x, v, w):
        return checkpoint(region, x, v, w, use_reentrant=False).sin()

    backend = Keeping()
    assert_like_eager(function, backend, tensors((3, 4), (4, 4), (4, 4)), dynamo=dynamo)
    assert backend.kept() == ["linear", "linear"]
    recomputed = backend.kept("backward")
    assert set(recomputed) == {"linear", "linear_backward"} and recomputed.count("linear_backward") == 2


def test_a_memory_budget_recomputes_whole_calls():
    backend = Keeping()
    function = lambda x, v, w: F.linear(F.linear(x, v).sin(), w).cos().sum()  # noqa: E731
    assert_like_eager(function, backend, tensors((64, 4), (4, 4), (4, 4)), memory_budget=0.0)
    assert "linear" in backend.kept("backward")


def test_calls_that_are_not_supported_run_in_islands():
    backend = Keeping(unsupported=(F.layer_norm,))
    function = lambda x, w: F.layer_norm(F.linear(x, w).sin(), (4,)).cos()  # noqa: E731
    assert_like_eager(function, backend, tensors((3, 4), (4, 4)))
    assert backend.kept() == ["linear"] and backend.kept("backward") == ["linear_backward"]
    islands = aotgrad.explain(function, backend=backend)(*tensors((3, 4), (4, 4))).islands
    assert any("layer_norm" in str(row) for row in islands)


def test_a_backend_computes_the_gradients_itself():
    class Own(Keeping):
        def compile(self, graph, inputs, role):
            for node in calls_in(graph):
                if isinstance(node.target, KeptBackward):
                    assert (node.target.function, node.target.inputs) == (F.linear, ("tangent", "args[0]", "args[1]"))
                    assert node.target.outputs == ("args[0]", "args[1]")
                    node.target = lambda tangent, x, w: (tangent @ w, tangent.t() @ x)
            return super().compile(graph, inputs, role)

    assert_like_eager(lambda x, w: F.linear(x, w).sin(), Own({F.linear}), tensors((3, 4), (5, 4)))


# --- What a kernel of the gradients finds in its node ----------------------------------------------------------------


@both_frontends
def test_gradients_have_the_arguments_of_the_call(dynamo):
    backend = Keeping()
    function = lambda x, w: F.layer_norm(x, (4,), weight=w, eps=0.1).sin()  # noqa: E731
    assert_like_eager(function, backend, tensors((3, 4), (4,)), dynamo=dynamo)
    (target,) = backend.targets("backward")
    x, w = CallArgument("args[0]"), CallArgument("kwargs['weight']")
    assert target.args == (x, (4,)) and target.kwargs["weight"] == w and target.kwargs["eps"] == 0.1
    assert str(w) == "kwargs['weight']" and {str(x), str(w)} <= set(target.inputs) and target.outputs == (str(x), str(w))


def test_a_kernel_needs_no_graph():
    def gradient(target):
        def run(*values):
            given = dict(zip(target.inputs, values, strict=True))
            of = lambda argument: given[argument.name] if isinstance(argument, CallArgument) else argument  # noqa: E731
            (x, shape), eps = map(of, target.args), target.kwargs["eps"]
            return (torch.func.vjp(lambda x: F.layer_norm(x, shape, eps=eps), x)[1](given["tangent"])[0],)

        return run

    class Own(Keeping):
        def compile(self, graph, inputs, role):
            for node in calls_in(graph):
                if isinstance(node.target, KeptBackward):
                    node.target = gradient(node.target)
            return super().compile(graph, inputs, role)

    for eps in (1e-5, 0.5):
        function = lambda x, eps=eps: F.layer_norm(x, (4,), eps=eps).sin()  # noqa: E731
        assert_like_eager(function, Own({F.layer_norm}), tensors((3, 4)))


def test_numbers_of_a_call_are_given_to_its_gradients():
    def function(x, w):
        y = torch.reshape(x.t(), (x.shape[0] * 2, -1))
        return (y * w).sin()

    backend = Keeping()
    compiled = assert_like_eager(function, backend, tensors((6, 4), (12, 2)), dynamic=True)
    (target,) = backend.targets("backward")
    assert target.args == (CallArgument("args[0]"), (CallArgument("args[1][0]"), -1))
    assert "args[1][0]" in target.inputs
    assert_close_to_eager(function, compiled, tensors((8, 4), (16, 2)))
    assert len(compiled.plans()) == 1


@both_frontends
def test_calls_inside_of_functions_in_python_are_found(dynamo):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    backend, (x,) = Keeping(), tensors((2, 3, 8))
    compiled = torch.compile(layer, backend=aotgrad.DynamoBackend(backend)) if dynamo else aotgrad.aot_module(layer, backend)
    leaves = [x, *layer.parameters()]
    found, wanted = (torch.autograd.grad(run(x).sin().sum(), leaves) for run in (compiled, layer))
    torch.testing.assert_close(found, wanted)
    attention, block = ["linear", "scaled_dot_product_attention", "linear"], ["layer_norm", "linear", "relu", "linear"]
    assert backend.kept() == [*attention, *block, "layer_norm"]


def test_batched_gradients():
    x, w = tensors((3, 4), (5, 4))
    compiled = aotgrad.aot_function(lambda x, w: F.linear(x, w).sin(), Keeping())
    found, wanted = (
        torch.autograd.grad(run(x, w), (x, w), torch.eye(15).view(15, 3, 5), is_grads_batched=True)
        for run in (compiled, lambda x, w: F.linear(x, w).sin())
    )
    torch.testing.assert_close(found, wanted)


def test_compiled_autograd_records_the_gradients():
    def function(x, w):
        return F.linear(x, w).sin()

    args = tensors((3, 4), (5, 4))
    result = aotgrad.aot_function(function, Keeping())(*args).sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        result.backward()
    torch.testing.assert_close([arg.grad for arg in args], list(torch.autograd.grad(function(*args).sum(), args)))


class Doubling(Keeping):
    """Returns twice the gradients of kept calls."""

    def compile(self, graph, inputs, role):
        for node in calls_in(graph):
            if isinstance(target := node.target, KeptBackward):
                assert all("val" in each.meta for each in target.graph.graph.find_nodes(op="placeholder"))
                node.target = lambda *values, target=target: tuple(2 * each for each in target(*values))
        return super().compile(graph, inputs, role)


doubling = Doubling()


@pytest.mark.parametrize(
    ("name", "dynamic"), [*itertools.product(("linear", "layer_norm", "mask", "two_results"), (False, True))]
)
def test_a_script_has_the_gradients_of_kept_calls(name, dynamic, tmp_path):
    function, shapes, kept = CASES[name]
    path = tmp_path / "repro.py"
    repro = aotgrad.debug.minify(function, tensors(*shapes), f"{__name__}:doubling", path=path, dynamic=dynamic)
    assert repro.role == "backward" and f"kept_{kept[0]}_backward" in repro.script
    with pytest.raises(AssertionError, match="differs: output 0 is off by"):
        runpy.run_path(str(path), run_name="__main__")


def test_what_graphs_return_reads_like_what_they_take():
    texts = []

    class Printing(Keeping):
        def compile(self, graph, inputs, role):
            texts.append((role, [*map(str, inputs)], [*map(str, aotgrad.backends.graph_outputs(graph))]))
            return super().compile(graph, inputs, role)

    aotgrad.aot_function(lambda x, w: F.linear(x, w), Printing())(*tensors((3, 4), (5, 4)))
    assert texts == [("forward", ["primal 0", "primal 1"], ["output 0", "saved primals_1", "saved primals_2"])]


@both_frontends
def test_a_view_of_a_leaf_that_was_made_under_no_grad(dynamo):
    def function(x, w):
        with torch.no_grad():
            view = x[None]
            first = F.linear(view, w)
        return first, F.linear(view, w).sin(), F.linear(x, w)

    backend = Keeping()
    assert_like_eager(function, backend, tensors((3, 4), (5, 4)), dynamo=dynamo)
    assert backend.kept() == ["linear"] * 3 and backend.kept("backward") == ["linear_backward"] * 2


def test_a_hook_on_a_result():
    def function(x, w):
        y = F.linear(x, w)
        y.register_hook(lambda gradient: gradient * 2)
        return y.sin()

    assert_like_eager(function, Keeping(), tensors((3, 4), (5, 4)))


def test_bad_arguments_raise_as_in_eager():
    compiled = aotgrad.aot_function(lambda x, w: F.linear(x, w), Keeping())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled(*tensors((3, 4), (5, 6)))
    assert_like_eager(compiled, Keeping(), tensors((3, 4), (5, 4)))


def test_only_callables_can_be_kept():
    with pytest.raises(BackendError, match="keep has 'linear', which is no function"):
        aotgrad.aot_function(lambda x: x.sin(), Keeping({"linear"}))(torch.ones(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def test_an_attention_block(golden):
    backend = Keeping()
    compiled = aotgrad.aot_module(Block(), backend)
    compiled(torch.randn(2, 5, 8)).sum().backward()
    partition = compiled.plans()[0].executable.partition
    texts = [
        graph_text(name, half.module, half.signature) for name, half in vars(partition).items() if hasattr(half, "module")
    ]
    kept = [target for target in backend.targets("backward") if isinstance(target, KeptBackward)]
    golden("backends/kept_attention", "\n\n".join([*texts, *map(kept_text, kept)]) + "\n")


def kept_text(target):
    parameters = ", ".join(node.name for node in target.graph.graph.find_nodes(op="placeholder"))
    lines = [f"def {target.__name__}({parameters}):  # {', '.join(target.inputs)}"]
    lines += [f"    {line}" for line in body_lines(target.graph.graph) if not line.startswith("#")]
    returned = ", ".join(map(str, target.graph.graph.output_node().args[0]))
    return "\n".join([*lines, f"    return ({returned},)  # gradients of {'; '.join(target.outputs)}"])
