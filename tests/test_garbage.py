import gc

import pytest
import torch

import aotgrad
from aotgrad.garbage import collection_paused


def test_collection_is_paused_inside_and_as_before_afterwards():
    assert gc.isenabled()
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_is_on_after_an_error_too():
    with pytest.raises(ZeroDivisionError), collection_paused():
        _ = 1 / 0
    assert gc.isenabled()


def test_it_is_off_while_a_function_is_traced_and_on_while_a_backend_compiles():
    states = {}

    def f(x):
        states["traced"] = gc.isenabled()
        return x.sin()

    def compiler(graph, inputs):
        states["compiled"] = gc.isenabled()
        return graph

    aotgrad.aot_function(f, compiler)(torch.ones(2))
    assert states == {"traced": False, "compiled": True}
