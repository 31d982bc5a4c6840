"""Feature tests of `aotgrad/torch_compat/inductor/compilation.py`."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types

import pytest
import torch
import torch.fx as fx
from torch._dynamo.utils import counters as inductor_counters
from torch._inductor import config
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import graph_of_sin_cos, inductor

aten = torch.ops.aten


def test_compile_without_workers():
    import torch._inductor.config as config

    with config.patch(compile_threads=7):
        compat.compile_without_workers()
        assert config.compile_threads == 1


@inductor
def test_inductor_compiles_a_graph(fake_mode):
    module, fake = graph_of_sin_cos(fake_mode)
    with compat.inductor_context(fake_mode, "default"), compat.reported_output_strides() as strides:
        module = compat.inductor_joint_passes(module)
        settings = compat.inductor_graph_settings(cudagraphs=compat.inductor_uses_cudagraphs())
        compiled = compat.inductor_compile(module, [fake], static_input_idxs=[], is_inference=True, **settings)
    x = torch.rand(4)
    torch.testing.assert_close(compiled([x])[0], x.sin().cos())
    assert [compat.as_symints(fake_mode, stride) for stride in strides] == [(1,)]


@inductor
def test_passes_before_code_is_made_run_inside_of_a_context(fake_mode):
    seen = []

    @contextlib.contextmanager
    def around(graph):
        seen.append([str(node.target) for node in graph.nodes if node.op == "call_function"])
        yield

    module, fake = graph_of_sin_cos(fake_mode)
    settings = compat.inductor_graph_settings(cudagraphs=False)
    with fresh_cache(), compat.inductor_context(fake_mode, "default"), compat.around_post_grad_passes(around):
        compat.inductor_compile(module, [fake], static_input_idxs=[], is_inference=True, **settings)
    assert seen == [["aten.sin.default", "aten.cos.default"]]


@inductor
def test_the_factor_of_a_product_that_is_added_is_kept(fake_mode):
    a = torch.rand(2, 2)
    graph = fx.Graph()
    x = graph.placeholder("x")
    product = graph.call_function(aten.mm.default, (x, x))
    total = graph.call_function(aten.add.Tensor, (x, product), {"alpha": 3})
    graph.output((total,))
    for node in (x, product, total):
        node.meta["val"] = fake_mode.from_tensor(a, static_shapes=True)
    module, settings = fx.GraphModule({}, graph), compat.inductor_graph_settings(cudagraphs=False)
    inputs = [x.meta["val"]]
    with fresh_cache(), compat.inductor_context(fake_mode, "default"), compat.keep_factors_of_sums():
        compiled = compat.inductor_compile(module, inputs, static_input_idxs=[], is_inference=True, **settings)
    torch.testing.assert_close(compiled([a])[0], a + 3 * (a @ a))


@inductor
def test_cudagraphs_are_disabled_for_all_graphs_that_share_settings():
    settings = compat.inductor_graph_settings(cudagraphs=True)
    compat.disable_cudagraphs(settings)
    assert not settings["cudagraphs"]


def test_how_much_a_fusion_must_save_is_a_setting():
    ((name, count),) = compat.fusions_that_save(64).items()
    assert count == 64 and compat.why_no_inductor_setting(name, count) is None


@inductor
def test_equal_graphs_are_apart_in_inductors_cache():
    """For example if only one's results are visible to a user, which is not part of the key."""
    counts = []
    with fresh_cache():
        for text in ("seen", "unseen", "seen"):
            mode = compat.new_fake_mode()
            module, fake = graph_of_sin_cos(mode)
            before = inductor_counters["inductor"]["fxgraph_cache_hit"]
            with compat.inductor_context(mode, "default", **compat.inductor_cache_tag(text)):
                compat.inductor_compile(module, [fake], static_input_idxs=[], **compat.inductor_graph_settings(False))
            counts.append(inductor_counters["inductor"]["fxgraph_cache_hit"] - before)
    assert counts == [0, 0, 1]


@inductor
@pytest.mark.parametrize("over", [(), (0,)])
def test_a_backward_writes_over_an_input(over):
    module, fake = graph_of_sin_cos(compat.new_fake_mode())
    settings = {"static_input_idxs": [], "is_backward": True, **compat.inductor_graph_settings(False)}
    with fresh_cache(), compat.inductor_context(fake.fake_mode, "default"), compat.inductor_writes_over(over):
        compiled = compat.inductor_compile(module, [fake], **settings)
    x = torch.randn(fake.shape)
    before, expected = x.clone(), x.sin().cos()
    (result,) = compiled([x])
    assert torch.allclose(result, expected) and torch.equal(x, before) is not bool(over)


def test_a_cached_graph_whose_guards_ask_for_another_symbol_is_a_miss(monkeypatch):
    """The part of a wrapper subclass may have a multiple of such a symbol as its size."""
    from torch._inductor import compile_fx

    def look_up(module, inputs):
        return [ShapeEnv().evaluate_guards_expression(guards, inputs) for guards in ("2 <= L['t0']", "2 <= L['other']")]

    monkeypatch.setattr(compile_fx, "compile_fx_inner", look_up)
    assert compat.inductor_compile(fx.GraphModule({}, fx.Graph()), [3]) == [True, False]
    with pytest.raises(KeyError):
        look_up(None, [3])


def test_a_lowering_of_the_users_own():
    from torch._inductor import lowering

    assert not compat.inductor_has_users_lowerings() and compat.inductor_key() is not None
    torch.library.custom_op("aotgrad_tests::lowered", torch.clone, mutates_args=(), schema="(Tensor x) -> Tensor")
    overload = torch.ops.aotgrad_tests.lowered.default
    try:
        lowering.register_lowering(overload)(lambda x: x)
        assert compat.inductor_has_users_lowerings() and compat.inductor_key() is None
    finally:
        lowering.lowerings.pop(overload, None)


@inductor
def test_inductor_decompositions_are_a_table():
    assert aten.silu_backward.default in compat.inductor_decompositions()


@inductor
def test_a_mode_configures_inductor(fake_mode):
    with compat.inductor_context(fake_mode, "reduce-overhead"):
        assert compat.inductor_uses_cudagraphs()
    assert not compat.inductor_uses_cudagraphs()


@inductor
def test_whether_any_op_may_read_a_generator():
    from torch._inductor.graph import GraphLowering

    source = inspect.getsource(GraphLowering.placeholder)
    assert "Generator" in source and compat.inductor_takes_generators() is ("graphsafe_run" not in source)


@inductor
def test_a_graph_that_holds_launchers_is_not_stored():
    from torch._inductor.output_code import CompiledFxGraph

    made = object.__new__(CompiledFxGraph)
    made.compiled_fn_runner = None
    loaded = types.SimpleNamespace(kernel=types.SimpleNamespace(launchers=[len]))
    made._triton_bundle = types.SimpleNamespace(kernel_artifacts=[], static_autotuners=[loaded])
    assert compat.holds_launchers(made) and compat.inductor_dump(made) is None
    loaded.kernel.launchers.clear()
    assert not compat.holds_launchers(made)


@inductor
def test_inductors_key_is_that_of_its_configuration():
    before = compat.inductor_key()
    assert before is not None and compat.inductor_key() == before
    with compat.inductor_config("max-autotune-no-cudagraphs"):
        assert compat.inductor_key() not in (before, None)
    with compat.inductor_config("default", layout_optimization=False):
        assert compat.inductor_key() not in (before, None)
    for name in ("post_grad_custom_post_pass", "joint_custom_pre_pass"):
        assert name.startswith(compat.INDUCTOR_PASSES)
        with compat.inductor_config("default", **{name: lambda graph: None}):
            assert compat.inductor_key() is None


def test_what_has_the_same_text_in_every_process():
    assert compat.is_stable({"a": [1, (None, 2.0)], "b": {"x", "y"}}) and not compat.is_stable([object()])
    assert compat.stable_text({"b", "a"}) == compat.stable_text({"a", "b"}) and compat.stable_text((1,)) == "(1,)"


@inductor
def test_what_inductor_made_is_loaded_again(fake_mode):
    module, fake = graph_of_sin_cos(fake_mode)
    with compat.inductor_context(fake_mode, "default"):
        made = compat.inductor_compile(module, [fake], static_input_idxs=[], **compat.inductor_graph_settings(False))
    loaded = compat.inductor_load(compat.inductor_dump(made), is_backward=False)
    x = torch.rand(4)
    assert torch.equal(loaded([x.clone()])[0], made([x.clone()])[0])
    module = types.ModuleType("again")
    module.call = compat.inductor_module(made).call
    with_module = compat.inductor_load_module(compat.inductor_dump(made), module, is_backward=False)
    assert torch.equal(with_module([x.clone()])[0], made([x.clone()])[0])
    kernel = next(value for name, value in vars(compat.inductor_module(made)).items() if name.startswith("cpp_"))
    assert compat.kernel_in(*compat.library_of(kernel)) is kernel
    assert compat.inductor_dump(lambda inputs: inputs) is None


@inductor
def test_the_names_of_decompositions(monkeypatch):
    table = compat.inductor_decompositions()
    names = dict(compat.names_of_decompositions(table))
    assert len(names) == len(table) and names["aten.silu.default"].startswith("torch.")
    assert compat.names_of_decompositions({torch.ops.aten.sin.default: torch.ops.aten.cos.default}) == [
        ("aten.sin.default", "aten.cos.default")
    ]
    assert compat.names_of_decompositions({torch.ops.aten.sin.default: lambda x: x}) is None
    assert compat.DECOMPOSITIONS in sys.modules
    monkeypatch.setattr("aotgrad.torch_compat.inductor.compilation._own_decompositions", table)
    assert compat.names_of_inductor_decompositions() == []
    monkeypatch.setattr("aotgrad.torch_compat.inductor.compilation._own_decompositions", {})
    assert len(compat.names_of_inductor_decompositions()) == len(table)


def test_settings_of_inductors():
    assert compat.is_inductor_setting("triton.cudagraphs") and compat.is_inductor_setting("max-autotune")
    assert not compat.is_inductor_setting("memory_budget") and not compat.is_inductor_setting(3)
    assert compat.why_no_inductor_setting("triton.cudagraphs", True) is None
    assert compat.why_no_inductor_setting("shape-padding", True) is None
    assert "close are max_autotune" in compat.why_no_inductor_setting("max_autotun", True)
    assert "must be of type bool" in compat.why_no_inductor_setting("max_autotune", "yes")


def test_settings_that_are_for_what_stands_before_inductor():
    """Each of them exists, so the test detects a name that changes."""
    names = config.get_config_copy()
    assert [start for start in compat.READ_ELSEWHERE if not any(name.startswith(start) for name in names)] == []
    assert compat.why_no_inductor_setting("freezing", config.freezing) is None
    assert "does nothing here" in compat.why_no_inductor_setting("freezing", not config.freezing)


@inductor
def test_inductor_calls_an_op_that_it_would_have_taken_apart():
    from torch._inductor.lowering import lowerings

    assert aten.upsample_bicubic2d.default not in compat.inductor_decompositions()
    left_whole = (aten.upsample_bicubic2d.default, aten.upsample_bicubic2d_backward.default)
    compat.call_in_inductor([*left_whole, len])
    assert all(op in lowerings for op in left_whole)


@inductor
def test_inductor_hears_of_the_strides_of_an_output_that_it_did_not_note(fake_mode):
    """A transposed copy replaces the result of an op before the code is generated."""

    @contextlib.contextmanager
    def transposed(graph):
        yield
        (end,) = graph.find_nodes(op="output")
        (node,) = end.args[0]
        with graph.inserting_before(end):
            copy = graph.call_function(aten.permute.default, (graph.call_function(aten.clone.default, (node,)), [1, 0]))
        copy.args[0].meta["val"], copy.meta["val"] = node.meta["val"], node.meta["val"].t()
        end.args = ([copy],)
        compat.tell_output_stride(end, 0, (1, 3))

    module, fake = graph_of_sin_cos(fake_mode, torch.ones(3, 3))
    (end,) = module.graph.find_nodes(op="output")
    compat.tell_output_stride(end, 0, (1, 3))  # nothing is noted yet
    end.meta["user_visible_output_idxs"] = [0]
    settings = compat.inductor_graph_settings(cudagraphs=False)
    with fresh_cache(), compat.inductor_context(fake_mode, "default"), compat.around_post_grad_passes(transposed):
        compiled = compat.inductor_compile(module, [fake], static_input_idxs=[], is_inference=True, **settings)
    assert compiled([torch.ones(3, 3)])[0].stride() == (1, 3)
