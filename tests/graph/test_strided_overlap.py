"""Shared elements, compared with sets of bytes."""

from __future__ import annotations

import random

import pytest
import torch

from aotgrad.graph import strided_overlap as module
from aotgrad.graph.strided_overlap import ByteLayout, Term, hits_window, overlap, overlapping_pairs


def bytes_of(layout: ByteLayout) -> set[int]:
    starts = {layout.offset}
    for size, stride in zip(layout.sizes, layout.strides, strict=True):
        starts = {start + stride * index for start in starts for index in range(size)}
    return {start + byte for start in starts for byte in range(layout.itemsize)}


def random_layout(rng: random.Random, largest_stride: int) -> ByteLayout:
    dims = rng.randint(0, 4)
    sizes = tuple(rng.choice([0, 1, 2, 2, 3, 4, 5]) if rng.random() < 0.9 else 7 for _ in range(dims))
    strides = tuple(rng.randint(0, largest_stride) for _ in range(dims))
    return ByteLayout(rng.randint(0, 2 * largest_stride), sizes, strides, rng.choice([1, 2, 4, 8, 16]))


@pytest.mark.parametrize("largest_stride", [5, 30, 200])
def test_random_layouts(largest_stride):
    rng = random.Random(largest_stride)
    answers = []
    for _ in range(4000):
        a, b = random_layout(rng, largest_stride), random_layout(rng, largest_stride)
        expected = bool(bytes_of(a) & bytes_of(b))
        assert (overlap(a, b), overlap(b, a)) == (expected, expected), (a, b)
        answers.append(expected)
    assert 0.05 < sum(answers) / len(answers) < 0.95


def layout_of(tensor: torch.Tensor) -> ByteLayout:
    item = tensor.element_size()
    return ByteLayout(tensor.data_ptr(), tuple(tensor.shape), tuple(item * step for step in tensor.stride()), item)


BASE = torch.arange(240.0)
VIEWS = {
    "halves": (BASE[:120], BASE[120:], False),
    "neighbours": (BASE[:121], BASE[120:], True),
    "even and odd": (BASE[::2], BASE[1::2], False),
    "every third and every second": (BASE[::3], BASE[1::2], True),
    "columns": (BASE.view(12, 20)[:, :7], BASE.view(12, 20)[:, 7:], False),
    "row and column": (BASE.view(12, 20)[3], BASE.view(12, 20)[:, 5], True),
    "row and the rest of a column": (BASE.view(12, 20)[3], BASE.view(12, 20)[4:, 5], False),
    "channels": (BASE.view(4, 3, 4, 5)[:, 0], BASE.view(4, 3, 4, 5)[:, 1:], False),
    "transposed": (BASE.view(12, 20), BASE.view(12, 20).t(), True),
    "expanded": (BASE[7].expand(50), BASE[:7], False),
    "expanded and hit": (BASE[7].expand(50), BASE[:8], True),
    "real and imaginary parts": (torch.view_as_complex(BASE.view(-1, 2)).real, BASE[1::2], False),
    "another dtype": (BASE.view(torch.int16)[1::2], BASE[::4], True),
    "windows": (BASE.unfold(0, 5, 11), BASE[5:].unfold(0, 6, 11), False),
    "empty": (BASE[3:3], BASE, False),
    "other memory": (BASE, torch.arange(240.0), False),
    "diagonal and one beside it": (BASE[:144].view(12, 12).diagonal(), BASE[:144].view(12, 12).diagonal(1), False),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_tensors(name):
    a, b, expected = VIEWS[name]
    assert overlap(layout_of(a), layout_of(b)) == overlap(layout_of(b), layout_of(a)) == expected


def test_large_tensors_are_decided_without_a_search():
    columns = ByteLayout(0, (10**6, 512, 3), (4096 * 4, 8, 2), 1)
    assert not overlap(columns, columns._replace(offset=1))
    assert overlap(columns, columns._replace(offset=4096 * 4 * 77 + 8 * 5 + 4))


def test_a_search_that_takes_too_long_says_that_memory_is_shared(monkeypatch):
    strides = [Term(stride, 1) for stride in (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061)]
    assert not hits_window(strides, 4065, 4068)
    monkeypatch.setattr(module, "SEARCH_STEPS", 5)
    assert hits_window(strides, 4065, 4068)


def test_pairs_that_involve_a_written_tensor():
    rng = random.Random(0)
    found = 0
    for _ in range(300):
        layouts = [random_layout(rng, 12) if rng.random() < 0.9 else None for _ in range(6)]
        written = [k for k in range(6) if rng.random() < 0.4]
        memory = [bytes_of(layout) if layout else set() for layout in layouts]
        pairs = [(j, k) for k in range(6) for j in range(k) if {j, k} & set(written) and memory[j] & memory[k]]
        assert overlapping_pairs(layouts, written) == set(pairs)
        found += len(pairs)
    assert found > 100
