"""One plan serves every batch size and every length: `torch.compile(dynamic=True)`, a step at each size."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters as dynamo_counters

import aotgrad

from .test_models import assert_equal_tensors, pytestmark, run_step, seeded_batch
from .zoo import CASES, ModelCase

__all__ = ["pytestmark"]

BATCHES, LENGTHS = (2, 3, 7, 64), (3, 24, 200)
SEVERAL = {
    ("autocast_mlp", 0): BATCHES,
    ("bert", 0): BATCHES,
    ("bert", 1): LENGTHS,
    ("click_model", 0): (7, 3, 2, 64),  # Dynamo unifies sizes that are equal at first: other sizes are 2 and 3
    ("denoiser", 0): BATCHES,
    ("domain_adversarial", 0): BATCHES,
    ("fourier_operator", 0): BATCHES,
    ("gpt2", 0): BATCHES,
    ("graph_network", 1): LENGTHS,
    ("growing_attention", 0): BATCHES,
    ("growing_attention", 1): LENGTHS,
    ("growing_transformer_encoder", 0): BATCHES,
    ("growing_transformer_encoder", 1): LENGTHS,
    ("llama", 0): BATCHES,
    ("llama", 1): LENGTHS,
    ("low_rank_adapter", 0): BATCHES,
    ("lstm", 0): BATCHES,
    ("lstm_cell", 0): BATCHES,
    ("mamba", 0): BATCHES,
    ("mean_teacher", 0): BATCHES,
    ("qwen_moe", 0): BATCHES,
    ("qwen_moe", 1): LENGTHS,
    ("resnet", 0): BATCHES,
    ("spectral_discriminator", 0): BATCHES,
    ("t5", 0): BATCHES,
    ("t5", 1): LENGTHS,
    ("two_heads", 0): BATCHES,
    ("unet", 0): BATCHES,
    ("vae", 0): BATCHES,
    ("vector_quantizer", 0): BATCHES,
    ("vit", 0): BATCHES,
    ("whisper", 0): BATCHES,
}
NARROW = "torch's shape function of a convolution asks whether the batch is smaller than 16"
PRODUCT = "torch's shape function of `cdist` asks whether there are more than 25 rows, which it multiplies as matrices"
UNROLLED = {"mamba": 3}
"""Models that loop over the sequence in Python, and a length at which that is compiled quickly."""

TWO_PLANS = {
    ("denoiser", 0): NARROW,
    ("mamba", 0): NARROW,
    ("resnet", 0): NARROW,
    ("unet", 0): NARROW,
    ("vector_quantizer", 0): PRODUCT,
    ("whisper", 0): NARROW,
}
"""Where there are two plans, and why; Dynamo makes two graphs, whatever the backend is."""

WITHOUT_DYNAMO = {
    ("autocast_mlp", 0): 1,
    ("bert", 1): 2,
    ("denoiser", 0): 2,
    ("fourier_operator", 0): 1,
    ("gpt2", 1): 1,
    ("graph_network", 1): 1,
    ("growing_transformer_encoder", 1): 1,
    ("llama", 1): 1,
    ("mean_teacher", 0): 1,
    ("spectral_discriminator", 0): 1,
    ("vector_quantizer", 0): 2,
    ("vit", 0): 1,
}
"""How many plans `aot_module` makes. Two are for the reasons of `TWO_PLANS`, or, for `bert`,
since transformers asks whether a mask leaves anything out, which of the first 3 tokens it does not."""


def ids_of(cases: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{name}, dimension {dim}" for name, dim in cases]


@pytest.mark.parametrize(("name", "dim"), SEVERAL, ids=ids_of(SEVERAL))
def test_one_plan_serves_all_sizes(name: str, dim: int) -> None:
    case = case_of(name)
    model = seeded_model(case)
    compiled = torch.compile(model, backend="aotgrad_eager", fullgraph=True, dynamic=True)
    assert_equal_steps(case, model, compiled, dim, SEVERAL[name, dim])
    assert aotgrad.counters["compilations"] == (2 if (name, dim) in TWO_PLANS else 1)


THROUGH_INDUCTOR = [
    ("growing_attention", 1),
    ("low_rank_adapter", 0),
    ("lstm_cell", 0),
    ("two_heads", 0),
]
"""Some that Inductor compiles in seconds; others take it minutes, or compute in bfloat16."""


@pytest.mark.parametrize(("name", "dim"), THROUGH_INDUCTOR, ids=ids_of(THROUGH_INDUCTOR))
def test_one_plan_serves_all_sizes_through_inductor(name: str, dim: int) -> None:
    case = case_of(name)
    model = seeded_model(case)
    with torch._inductor.config.patch(fallback_random=True):
        compiled = torch.compile(model, backend="aotgrad", fullgraph=True, dynamic=True)
        assert_equal_steps(case, model, compiled, dim, SEVERAL[name, dim], gradients_rtol=1e-3)
    assert aotgrad.counters["compilations"] == 1


def test_one_plan_on_each_side_of_a_graph_break_serves_all_batches() -> None:
    case = case_of("graph_break_mlp")
    model = seeded_model(case)
    compiled = torch.compile(model, backend="aotgrad_eager", dynamic=True)
    assert_equal_steps(case, model, compiled, 0, BATCHES)
    assert aotgrad.counters["compilations"] == case.graphs == 2


@pytest.mark.parametrize(("name", "dim"), TWO_PLANS, ids=ids_of(TWO_PLANS))
def test_dynamo_itself_makes_two_graphs(name: str, dim: int) -> None:
    case = case_of(name)
    compiled = torch.compile(seeded_model(case), backend="eager", fullgraph=True, dynamic=True)
    for size in SEVERAL[name, dim]:
        compiled(**batch_of(case, dim, size))
    assert dynamo_counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize(("name", "dim"), WITHOUT_DYNAMO, ids=ids_of(WITHOUT_DYNAMO))
def test_one_plan_serves_all_sizes_without_dynamo(name: str, dim: int) -> None:
    case = case_of(name)
    model = seeded_model(case)
    compiled = aotgrad.aot_module(model, aotgrad.nop, dynamic=True)
    assert_equal_steps(case, model, compiled, dim, BATCHES if dim == 0 else LENGTHS)
    assert aotgrad.counters["compilations"] == WITHOUT_DYNAMO[name, dim]


@pytest.mark.parametrize("name", ["growing_transformer_encoder", "llama"])
def test_one_plan_serves_batches_and_lengths_that_are_marked(name: str) -> None:
    case = case_of(name)
    torch.manual_seed(0)
    model = case.build().eval()
    compiled = torch.compile(model, backend="aotgrad_eager", fullgraph=True)
    for sizes in zip(BATCHES, (3, 200, 24, 7), strict=True):
        batch = seeded_batch(case, 0)
        for dim, size in enumerate(sizes):
            batch = resized(batch, dim, size)
        for tensor in batch.values():
            torch._dynamo.mark_dynamic(tensor, (0, 1))
        steps = []
        for forward in (model, compiled):
            model.zero_grad()
            for tensor in batch.values():
                tensor.grad = None
            steps.append(run_step(model, forward, batch))
        expected, actual = steps
        assert_equal_tensors(f"sizes {sizes}", actual.outputs, expected.outputs, rtol=1e-5, atol=1e-6)
        assert_equal_tensors(f"sizes {sizes}", actual.gradients, expected.gradients, rtol=1e-4, atol=1e-6)
    assert aotgrad.counters["compilations"] == 1


def case_of(name: str) -> ModelCase:
    return next(case for case in CASES if case.name == name)


def seeded_model(case: ModelCase) -> nn.Module:
    torch.manual_seed(0)
    return case.build().train()


def batch_of(case: ModelCase, dim: int, size: int) -> Mapping[str, Tensor]:
    batch = seeded_batch(case, 0)
    if case.name in UNROLLED:
        batch = resized(batch, 1, UNROLLED[case.name])
    if case.name == "click_model":  # of the categories, the batch is the second extent
        batch = {**batch, "categories": batch["categories"][:, torch.arange(size) % batch["categories"].shape[1]]}
    return resized(batch, dim, size)


def assert_equal_steps(
    case: ModelCase,
    model: nn.Module,
    compiled: Callable[..., Mapping[str, Tensor]],
    dim: int,
    sizes: Sequence[int],
    gradients_rtol: float = 1e-4,
) -> None:
    """The compiled model and an equal eager model agree in a step at each size."""
    eager = copy.deepcopy(model)
    for size in sizes:
        steps = []
        for module, forward in ((eager, eager), (model, compiled)):
            module.zero_grad()
            batch = batch_of(case, dim, size)
            torch.manual_seed(size)
            steps.append(run_step(module, forward, batch))
        expected, actual = steps
        assert_equal_tensors(f"size {size}", actual.outputs, expected.outputs, rtol=1e-5, atol=1e-6)
        assert_equal_tensors(f"size {size}", actual.gradients, expected.gradients, rtol=gradients_rtol, atol=1e-6)


def resized(batch: Mapping[str, Tensor], dim: int, size: int) -> Mapping[str, Tensor]:
    """The batch with `dim` resized where it is longest; elements are repeated or cut off."""
    old = max(tensor.shape[dim] for tensor in batch.values() if tensor.dim() > dim)
    chosen = torch.arange(size) % old
    return {
        name: tensor.detach().index_select(dim, chosen).requires_grad_(tensor.requires_grad)
        if tensor.dim() > dim and tensor.shape[dim] == old
        else tensor
        for name, tensor in batch.items()
    }
