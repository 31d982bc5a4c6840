"""`functorch.compile`, name by name: docs/drop_in.md says what aotgrad has of it, and that is so."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import functorch.compile as peer
import pytest
import torch
import torch.fx as fx
import torch.nn.functional as F
import torch.utils._pytree as pytree

import aotgrad
from aotgrad import torch_compat as compat
from aotgrad.options import PEER_NAMES
from tests.golden.harness import REPOSITORY
from tests.numerics.against_eager import leaf, plain

ROWS = re.findall(r"^\| `(\w+)` \| (same|better|left out) \| (.*?) ?\|$", (REPOSITORY / "docs/drop_in.md").read_text(), re.M)
TABLE = {name: (verdict, why) for name, verdict, why in ROWS}
NAMES = sorted(name for name in vars(peer) if not name.startswith("_"))
TORCHSCRIPT = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


# --- The table -------------------------------------------------------------------------------------------------------


def test_the_table_has_every_name():
    assert sorted(TABLE) == [row[0] for row in ROWS], "the table is sorted, and has each name once"
    assert sorted(TABLE) == NAMES


@pytest.mark.parametrize("name", TABLE)
def test_a_name_is_there_unless_it_is_left_out(name):
    verdict, why = TABLE[name]
    assert (verdict == "left out") != hasattr(aotgrad, name)
    assert (verdict == "left out") != (name in aotgrad.__all__)
    assert why or verdict == "same"


# What the table says of parameters: other defaults, and parameters that there are not.
OTHER_DEFAULTS = {(name, "partition_fn") for name in ("aot_function", "aot_module_simplified", "compiled_function")}
OTHER_DEFAULTS |= {("minifier", "dump_state")}
WITHOUT = {
    **{name: {*parameters} for name, parameters in compat.PEER_PARAMETERS.items() if name in NAMES},
    "compiled_function": {*compat.PEER_PARAMETERS["aot_function"]},
    "default_partition": {"static_lifetime_input_nodes"},
}
FUNCTIONS = [name for name in TABLE if callable(getattr(peer, name, None)) and hasattr(aotgrad, name)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_signature_is_the_same(name):
    theirs, ours = (inspect.signature(getattr(module, name)).parameters for module in (peer, aotgrad))
    wanted = [p for p in theirs.values() if p.name not in WITHOUT.get(name, ()) and not p.name.startswith("_disable")]
    for position, parameter in enumerate(wanted):
        assert parameter.name in ours, parameter.name
        own = ours[parameter.name]
        assert own.kind == parameter.kind
        if parameter.kind is not parameter.KEYWORD_ONLY:
            assert list(ours)[position] == parameter.name
        if (name, parameter.name) not in OTHER_DEFAULTS:
            assert own.default == parameter.default
    assert all(p.default is not p.empty for p in list(ours.values())[len(wanted) :] if p.kind is not p.VAR_KEYWORD)


def test_what_is_left_out_of_a_signature_is_in_the_table():
    for name, parameters in WITHOUT.items():
        theirs = set(inspect.signature(getattr(peer, name)).parameters)
        for parameter in parameters & theirs:
            assert f"`{parameter}`" in TABLE[name][1] + TABLE["aot_function"][1] or parameter.startswith("_"), parameter


CALLS: dict[str, Callable] = {
    "aot_function": lambda **given: aotgrad.aot_function(torch.sin, aotgrad.nop, **given),
    "aot_module": lambda **given: aotgrad.aot_module(torch.nn.Tanh(), aotgrad.nop, **given),
    "aot_module_simplified": lambda **given: aotgrad.aot_module_simplified(sine(), [plain(2)], aotgrad.nop, **given),
    "compiled_function": lambda **given: aotgrad.compiled_function(torch.sin, aotgrad.nop, **given),
    "compiled_module": lambda **given: aotgrad.compiled_module(torch.nn.Tanh(), aotgrad.nop, **given),
    "minifier": lambda **given: aotgrad.minifier(sine(), [plain(2)], lambda *_: True, lambda *_: None, **given),
}
SETTINGS_OF = {"aot_module": "aot_function", "compiled_function": "aot_function", "compiled_module": "aot_function"}


def sine() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: (torch.ops.aten.sin.default(x),))


@pytest.mark.parametrize("name", CALLS)
def test_a_parameter_that_is_left_out_says_what_to_use(name):
    known = compat.PEER_PARAMETERS[SETTINGS_OF.get(name, name)]
    CALLS[name](**{parameter: of_peer.neutral for parameter, of_peer in known.items()})
    for parameter, of_peer in known.items():
        with pytest.raises(aotgrad.errors.OptionError, match=re.escape(f"has no {parameter}='other': {of_peer.instead}")):
            CALLS[name](**{parameter: "other"})
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'no_such_parameter'"):
        CALLS[name](no_such_parameter=1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_of_the_peer_is_known(name):
    """Each one is ours, or is rejected with a reason, or belongs to a partition function, which takes what it is given."""
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (aotgrad, peer))
    unknown = set(theirs) - set(ours) - set(WITHOUT.get(name, ()))
    assert unknown == set()
    for parameter in set(theirs) & set(compat.PEER_PARAMETERS.get(name, ())):
        assert theirs[parameter].default == compat.PEER_PARAMETERS[name][parameter].neutral


def test_what_is_left_out_says_what_to_use():
    (left_out,) = (name for name, (verdict, _) in TABLE.items() if verdict == "left out")
    with pytest.raises(AttributeError, match=r"aotgrad\.debug\.minify\(fn, args, ts_compile\) writes a script that runs"):
        getattr(aotgrad, left_out)
    with pytest.raises(AttributeError, match="module 'aotgrad' has no attribute 'no_such_name'"):
        _ = aotgrad.no_such_name


# --- Ready-made compilers --------------------------------------------------------------------------------------------


def gelu_sum(x):
    return F.gelu(x).to(torch.float64).sum()


def gradient_of(compiled):
    torch.manual_seed(0)
    x = leaf(4)
    compiled(x).backward()
    return x.grad


@TORCHSCRIPT
@pytest.mark.parametrize("compile_it", [aotgrad.memory_efficient_fusion, aotgrad.nnc_jit])
def test_torchscript(compile_it):
    torch.testing.assert_close(gradient_of(compile_it(gelu_sum)), gradient_of(gelu_sum))


@TORCHSCRIPT
def test_the_peers_own_compiler():
    torch.testing.assert_close(gradient_of(aotgrad.aot_function(gelu_sum, peer.ts_compile)), gradient_of(gelu_sum))


@TORCHSCRIPT
def test_memory_efficient_fusion_of_a_module():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.GELU())
    fused = aotgrad.memory_efficient_fusion(model)
    x = plain(4, 3)
    torch.testing.assert_close(fused(x), model(x))
    assert isinstance(fused, torch.nn.Sequential)


@TORCHSCRIPT
def test_ts_compile_runs_real_inputs_once():
    def sine(x):
        return (torch.ops.aten.sin.default(x),)

    graph = fx.symbolic_trace(sine)
    compiled = aotgrad.ts_compile(graph, [torch.ones(2)])
    assert torch.equal(compiled([torch.ones(2)])[0], torch.ones(2).sin())


def test_print_compile(capsys):
    assert torch.equal(gradient_of(aotgrad.aot_function(gelu_sum, aotgrad.print_compile)), gradient_of(gelu_sum))
    assert capsys.readouterr().out.count("def forward(self, ") == 2


def test_default_decompositions_are_the_peers():
    theirs = {op: function for op, function in peer.default_decompositions.items() if "detach" not in str(op)}
    assert aotgrad.default_decompositions == theirs


def test_draw_graph(tmp_path):
    compiler = aotgrad.draw_graph_compile(str(tmp_path / "graph.dot"))
    aotgrad.aot_function(torch.sin, compiler)(torch.ones(2))
    assert "aten.sin" in (tmp_path / "graph.dot").read_text()


def test_draw_graph_draws_a_copy(monkeypatch, tmp_path):
    drawn = []

    class Drawer:
        def __init__(self, module, name, **settings):
            drawn.append((module, name, settings))

        def get_main_dot_graph(self):
            return types.SimpleNamespace(write=lambda *args, **settings: drawn.append((*args, settings)))

    monkeypatch.setitem(sys.modules, "torch.fx.passes.graph_drawer", types.SimpleNamespace(FxGraphDrawer=Drawer))
    graph = fx.symbolic_trace(torch.nn.Tanh())
    next(iter(graph.graph.nodes)).meta["val"] = 1
    aotgrad.draw_graph(graph, "picture", prog="neato")
    (copy, name, _), written = drawn
    assert (name, written) == ("fx_graph", ("picture.svg", {"prog": "neato", "format": "svg"}))
    assert [node.meta for node in copy.graph.nodes] == [{}] * 3 and next(iter(graph.graph.nodes)).meta == {"val": 1}


def test_pythonkey_decompose_is_the_peers():
    assert aotgrad.pythonkey_decompose is peer.pythonkey_decompose


def test_a_compiled_module_still_has_its_parameters():
    model = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    flat = fx.GraphModule(model, model.graph)
    (output,) = flat.graph.find_nodes(op="output")
    output.args = ((output.args[0],),)
    flat.recompile()
    compiled = aotgrad.aot_module_simplified(flat, [torch.ones(3, 2)], aotgrad.nop)
    assert dict(compiled.named_parameters()).keys() == dict(flat.named_parameters()).keys()
    assert dict(compiled.named_buffers()).keys() == dict(flat.named_buffers()).keys()
    compiled(torch.rand(3, 2))[0].sum().backward()
    compiled.zero_grad()
    assert all(parameter.grad is None for parameter in flat.parameters())


# --- Names of graphs and settings ------------------------------------------------------------------------------------


def named_graphs(api):
    names = []

    def compiler(graph, example_inputs):
        names.append((api.get_aot_graph_name(), api.get_graph_being_compiled(), api.get_aot_compilation_context()))
        return api.make_boxed_func(graph.forward)

    f = api.aot_function(torch.sin, compiler)
    f(leaf(2)).sum().backward()
    api.aot_function(torch.sin, compiler)(plain(2))
    return names


def test_the_names_of_graphs_look_as_the_peers():
    ours, theirs = named_graphs(aotgrad), named_graphs(peer)
    for (name, same, context), (other, _, other_context) in zip(ours, theirs, strict=True):
        assert name == same == f"model__{context[0][0]}_{context[2]}"
        assert re.sub(r"\d+", "N", name) == re.sub(r"\d+", "N", other)
        assert [type(item) for item in context] == [type(item) for item in other_context]
    assert aotgrad.get_aot_compilation_context()[0] == []


def test_settings_of_the_process():
    def saved():
        return aotgrad.explain(lambda x: x.sin().exp().cos().sum())(leaf(100)).saved_bytes

    before = saved()
    with aotgrad.config.patch(activation_memory_budget=0.0):
        assert aotgrad.config.memory_budget == 0.0
        less = saved()
    assert less < before == saved()
    with aotgrad.config.patch(activation_memory_budget=1.0):
        assert aotgrad.config.activation_memory_budget is None
    aotgrad.config.plan_limit = 3
    assert aotgrad.Options.from_mapping({}).plan_limit == 3
    assert aotgrad.Options.from_mapping({"plan_limit": 4}).plan_limit == 4
    del aotgrad.config.plan_limit
    assert aotgrad.config.plan_limit == 8


SETTINGS = sorted(name for name in peer.config.get_config_copy() if not name.startswith("_") and name != "TYPE_CHECKING")


def test_every_setting_of_the_peer_is_ours_or_says_what_to_use():
    assert set(SETTINGS) <= {*PEER_NAMES, *compat.PEER_SETTINGS}
    for name in set(SETTINGS) & {*compat.PEER_SETTINGS}:
        with pytest.raises(aotgrad.errors.OptionError, match=re.escape(f"{name!r}: {compat.PEER_SETTINGS[name]}")):
            getattr(aotgrad.config, name)
    with aotgrad.config.patch(functionalize_rng_ops=True, enable_activation_offloading=True):
        options = aotgrad.Options.from_mapping({})
        assert (options.functionalize_rng, options.offload) == (True, True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("use_fake_tensor", True, "unknown option 'use_fake_tensor'; the options are"),
        ("recompute_views", True, "aotgrad has no setting 'recompute_views': use the options `partitioner`"),
        ("dynamic", True, "is a parameter of the functions that compile"),
        ("plan_limit", 0, "option 'plan_limit' is 0; legal values are 1 to 1024"),
    ],
)
def test_settings_without_a_meaning_are_errors(name, value, message):
    with pytest.raises(aotgrad.errors.OptionError, match=message):
        setattr(aotgrad.config, name, value)
    with pytest.raises(aotgrad.errors.OptionError, match=message), aotgrad.config.patch(verify=True, **{name: value}):
        pass
    assert aotgrad.config.changed() == {}


# --- The graphs that a compiler gets ---------------------------------------------------------------------------------


def views_of_intermediate(x):
    y = x.sin()
    return y[0], y.t()


def gated(x):
    a, b = x.chunk(2, -1)
    return a.sigmoid() * b


def integers(*shape):
    return torch.randint(4, shape)


PROGRAMS: dict[str, tuple[Callable, Callable[[], tuple]]] = {
    "attention": (
        lambda *qkv: F.scaled_dot_product_attention(*qkv),
        lambda: (leaf(1, 2, 4, 8), leaf(1, 2, 4, 8), leaf(1, 2, 4, 8)),
    ),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v, training=True), lambda: (leaf(4, 3), plain(3), plain(3))),
    "broadcast": (lambda x, y: (x + y).sum(0), lambda: (leaf(4, 3), leaf(3))),
    "cat": (lambda x, y: torch.cat([x, y]).exp(), lambda: (leaf(2), leaf(3))),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b).relu(), lambda: (leaf(1, 2, 5, 5), leaf(3, 2, 3, 3), leaf(3))),
    "dropout": (lambda x: F.dropout(x, 0.5), lambda: (leaf(6),)),
    "embedding": (lambda w, i: F.embedding(i, w).sum(1), lambda: (leaf(7, 3), integers(2, 4))),
    "gated": (gated, lambda: (leaf(3, 4),)),
    "gelu": (lambda x: F.gelu(x), lambda: (leaf(5),)),
    "inference": (lambda x, y: (x @ y).relu(), lambda: (plain(3, 3), plain(3, 3))),
    "integer_output": (lambda x: (x.sin(), x.argmax()), lambda: (leaf(5),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), lambda: (leaf(2, 4), leaf(4), leaf(4))),
    "linear": (lambda x, w, b: F.linear(x, w, b).relu(), lambda: (leaf(4, 3), leaf(2, 3), leaf(2))),
    "loss": (lambda x, y: F.cross_entropy(x, y), lambda: (leaf(4, 5), integers(4))),
    "max": (lambda x: x.max(dim=1), lambda: (leaf(3, 4),)),
    "mutation": (lambda x, y: x.mul_(2) + y, lambda: (plain(3), leaf(3))),
    "pointwise": (lambda x, y: (x * y).sin().cos(), lambda: (leaf(3), leaf(3))),
    "two_outputs": (lambda x, y: (x @ y, (x @ y).exp()), lambda: (leaf(3, 3), leaf(3, 3))),
    "unused_input": (lambda x, y: x.sin(), lambda: (leaf(3), leaf(3))),
    "view_of_input": (lambda x: (x.t(), x.sin()), lambda: (leaf(2, 3),)),
    "views_of_intermediate": (views_of_intermediate, lambda: (leaf(3, 3),)),
    "where": (lambda x, y: torch.where(x > 0, x * y, y), lambda: (leaf(5), leaf(5))),
}


def graphs_of(api: Any, name: str) -> dict[str, list[fx.Graph]]:
    """The forward and the backward graphs of a program, or the inference graph."""
    function, make_args = PROGRAMS[name]
    graphs: dict[str, list[fx.Graph]] = {}

    def compiler(role):
        def compile_it(module, example_inputs):
            graphs.setdefault(role, []).append(module.graph)
            return api.make_boxed_func(module.forward)

        return compile_it

    forward, backward, inference = map(compiler, ("forward", "backward", "inference"))
    compiled = api.aot_function(function, forward, backward, api.default_partition, inference_compiler=inference)
    outputs = [value for value in pytree.tree_leaves(compiled(*make_args())) if value.requires_grad]
    if outputs:
        sum(value.sum() for value in outputs).backward()
    return graphs


def both(name: str) -> tuple[dict[str, list[fx.Graph]], dict[str, list[fx.Graph]]]:
    ours, theirs = graphs_of(aotgrad, name), graphs_of(peer, name)
    assert ours.keys() == theirs.keys()
    return ours, theirs


def kind(value: Any) -> Any:
    value = value.meta["val"] if isinstance(value, fx.Node) else value
    return (value.dtype, tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else value


def placeholders(graph: fx.Graph) -> list[tuple[str, Any]]:
    return [(node.name, kind(node)) for node in graph.find_nodes(op="placeholder")]


def results(graph: fx.Graph) -> list[Any]:
    (output,) = graph.find_nodes(op="output")
    return list(map(kind, output.args[0]))


FREE = ("aten.detach.default", "aten.alias.default")


def ops(graphs: list[fx.Graph]) -> Counter[str]:
    nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    return Counter(str(node.target) for node in nodes if str(node.target) not in FREE)


# What is another convention on purpose, see docs/drop_in.md.
MADE_FROM_THEIR_BASE = ("view_of_input", "views_of_intermediate")
SEVERAL_BACKWARDS = ("two_outputs",)
# What the peer computes and nothing needs, or what it computes twice.
FEWER = {
    "attention": {"aten._scaled_dot_product_flash_attention_for_cpu.default": 1},
    "linear": {"aten.t.default": 3},
    "two_outputs": {"aten.add.Tensor": 2},  # autograd sums what the two backwards return
    "view_of_input": {"aten.t.default": 1},
    "views_of_intermediate": {"aten.select.int": 1, "aten.t.default": 1},
    "where": {"aten.scalar_tensor.default": 1},
}


MORE = {"gated": {"aten.split.Tensor": 1, "<built-in function getitem>": 1}}  # a view is made again rather than saved


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_ops(name):
    ours, theirs = (sum(map(ops, graphs.values()), Counter()) for graphs in both(name))
    assert ours - theirs == Counter(MORE.get(name, {}))
    assert theirs - ours == Counter(FEWER.get(name, {}))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_inputs_and_results_of_a_forward(name):
    """But for saved values at the end: which they are is the partition's choice."""
    ours, theirs = both(name)
    (role,) = ours.keys() - {"backward"}
    (our_graph,), (their_graph,) = ours[role], theirs[role]
    if role == "forward":
        assert placeholders(our_graph) == placeholders(their_graph)
    else:
        assert [kind for _, kind in placeholders(our_graph)] == [kind for _, kind in placeholders(their_graph)]
    if name not in MADE_FROM_THEIR_BASE:
        count = result_count(name)
        assert results(our_graph)[:count] == results(their_graph)[:count]


def result_count(name: str) -> int:
    """Mutated inputs, then outputs."""
    function, make_args = PROGRAMS[name]
    args = make_args()
    versions = [arg._version for arg in args]
    outputs = pytree.tree_leaves(function(*args))
    return len(outputs) + sum(arg._version != version for arg, version in zip(args, versions, strict=True))


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "inference"])
def test_the_same_tangents_and_gradients(name):
    ours, theirs = both(name)
    (their_graph,) = theirs["backward"]
    expected = [each for each in placeholders(their_graph) if each[0].startswith("tangents")]
    found = [each for graph in ours["backward"] for each in placeholders(graph) if each[0].startswith("tangents")]
    assert sorted(found) == sorted(expected) == sorted(placeholders(their_graph)[-len(expected) :])
    if name not in SEVERAL_BACKWARDS:
        assert results(ours["backward"][0]) == results(their_graph)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nodes_have_the_peers_meta(name):
    ours, theirs = both(name)
    for role, graphs in ours.items():
        wanted = {str(node.target): set(node.meta) - {"is_gradient_acc"} for node in theirs[role][0].nodes}
        nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
        for node in nodes:
            tags = {"partitioner_tag"} if role != "inference" else set()
            assert {"val", "stack_trace", "seq_nr", *tags} <= set(node.meta), node
            if (node.meta.get("autograd_backward"), role) != (None, "backward"):  # made again: a node of the forward
                assert wanted.get(str(node.target), set()) - set(node.meta) == set(), node
