"""Halves from the disk run the collectives that freshly compiled ones run, also in variants that nobody ran before."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from tests.joint.collective_programs import MASKS, PROGRAMS, observed, two_equal_ranks

from .conftest import compiled

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ROOTS = (slice(0, None), slice(0, 1), slice(-1, None))


@pytest.fixture(scope="module", autouse=True)
def ranks():
    with two_equal_ranks():
        yield


def compiled_again(f, way):
    """The function as a new process compiles it."""
    if way.startswith("aotgrad"):
        return compiled(f, way, cache=True)
    return aotgrad.aot_function(f, way, options={"cache": True})


def check(f, way, counted, masks=MASKS):
    """Store the halves after a backward with all gradients; then ask restored halves for other gradients."""
    observed(compiled_again(f, way), (True, True, True), slice(0, None))
    assert counted() == {"cache_misses": 1, "compilations": 1}
    for wanted in masks:
        for roots in ROOTS:
            try:
                expected = observed(f, wanted, roots)
            except RuntimeError as error:  # no gradient is wanted that the roots lead to
                assert "does not require grad" in str(error) or "One of the" in str(error)
                continue
            found = observed(compiled_again(f, way), wanted, roots)
            assert counted() == {"cache_hits": 1, "compilations": 1}
            assert found[:2] == expected[:2], (wanted, roots)
            torch.testing.assert_close(found[2], expected[2])


@pytest.mark.parametrize("name", PROGRAMS)
def test_restored_halves_communicate_as_eager_does(name, counted):
    check(PROGRAMS[name], "eager", counted)


@pytest.mark.parametrize("name", ["gather, scatter", "for two gradients", "two results", "no tangent"])
def test_they_do_behind_dynamo(name, counted):
    check(PROGRAMS[name], "aotgrad_eager", counted)


@pytest.mark.parametrize("way", ["inductor", "aotgrad"])
def test_they_do_in_inductors_halves(way, counted):
    check(PROGRAMS["for two gradients"], way, counted, MASKS[-2:])
