import gc
import weakref

import pytest
import torch

import aotgrad
from aotgrad.capture import garbage
from aotgrad.capture.garbage import collection_paused


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


def test_what_was_made_is_old_afterwards_and_can_be_collected():
    before = len(gc.get_objects(generation=0))
    with collection_paused():
        cycle = [[] for _ in range(50_000)]
        cycle.append(cycle)
    assert len(gc.get_objects(generation=0)) < before + 25_000
    watched = weakref.ref(made_into_a_cycle())
    assert watched() is not None
    gc.collect()
    assert watched() is None


def made_into_a_cycle():
    class Node:
        pass

    with collection_paused():
        node = Node()
        node.itself = node
    return node


def test_what_somebody_has_frozen_stays_frozen():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with collection_paused():
            pass
        assert gc.get_freeze_count() > count // 2  # some may die meanwhile, by reference counting
    finally:
        gc.unfreeze()


def test_garbage_does_not_pile_up(monkeypatch):
    monkeypatch.setattr(garbage, "MOST_AGED", 10_000)
    watched = weakref.ref(made_into_a_cycle())
    with collection_paused():
        kept = [[] for _ in range(20_000)]
    assert watched() is None
    assert len(kept) == 20_000
