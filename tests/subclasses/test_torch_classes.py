"""The subclasses that torch itself defines, for users and for its tests, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.masked import masked_tensor
from torch.testing._internal.common_subclass import subclass_db
from torch.testing._internal.custom_tensor import ConstantExtraMetadataTensor, CustomTensorPlainOut
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.subclasses import WrapperSubclass

from aotgrad.errors import CaptureError
from tests.subclasses.programs import WAYS, compiled

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors is in prototype stage:UserWarning"),
    pytest.mark.filterwarnings("ignore:It is not recommended to create a MaskedTensor with a tensor that requires_grad"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # Dynamo does
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # Dynamo reads it
]


def numbers(seed: float = 0.0) -> torch.Tensor:
    return torch.arange(3.0) + 1 + seed


WRAPPERS: dict[str, Callable[[], torch.Tensor]] = {
    "WrapperSubclass": lambda: WrapperSubclass(numbers()),
    "ConstantExtraMetadataTensor": lambda: ConstantExtraMetadataTensor(numbers()),
    "CustomTensorPlainOut": lambda: CustomTensorPlainOut(numbers(), numbers(0.5)),
}
OTHERS: dict[str, Callable[[], torch.Tensor]] = {
    "MaskedTensor": lambda: masked_tensor(numbers(), torch.tensor([True, False, True])),
    "LoggingTensor": lambda: LoggingTensor(numbers()),
    **{
        kind.__name__: lambda info=info: info.create_fn((3,))
        for kind, info in subclass_db.items()
        if kind is not torch.Tensor
    },
}
FUNCTIONS: dict[str, Callable] = {
    "sum": lambda x: (x * x.sin()).sum(),
    "several results": lambda x: (x * 2, (x.exp() + x).sum()),
}


def run(function: Callable, make: Callable[[], torch.Tensor]) -> Any:
    """The results and the gradient as text; or the type of the error."""
    torch.manual_seed(0)
    x = make().requires_grad_()
    try:
        results = function(x)
        last = results[-1] if isinstance(results, tuple) else results
        last.backward()
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return type(error)
    tensors = [*(results if isinstance(results, tuple) else (results,)), x.grad]
    return [(type(tensor).__name__, text_of(tensor)) for tensor in tensors]


def text_of(tensor: torch.Tensor | None) -> str:
    with torch.no_grad():  # the names of autograd nodes are no part of a result
        return repr(None if tensor is None else tensor.detach())


@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers(name, function, way) -> None:
    make, function = WRAPPERS[name], FUNCTIONS[function]
    assert run(compiled(function, way), make) == run(function, make)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", OTHERS)
def test_others_behind_dynamo(name, function) -> None:
    make, function = OTHERS[name], FUNCTIONS[function]
    assert run(compiled(function, "dynamo, eager halves"), make) == run(function, make)


@pytest.mark.parametrize("way", [way for way in WAYS if "inductor" in way])
def test_through_inductor(way) -> None:
    make, function = WRAPPERS["ConstantExtraMetadataTensor"], FUNCTIONS["several results"]
    assert run(compiled(function, way), make) == run(function, make)


def test_masked_tensors_through_inductor() -> None:
    make, function = OTHERS["MaskedTensor"], FUNCTIONS["several results"]
    assert run(compiled(function, "dynamo, inductor halves"), make) == run(function, make)


@pytest.mark.parametrize("name", OTHERS)
def test_classes_that_no_graph_can_take_apart(name) -> None:
    ours = compiled(FUNCTIONS["sum"], "eager halves")
    with pytest.raises(CaptureError, match=r"whose __torch_function__ a trace does not call|and no __tensor_flatten__"):
        ours(OTHERS[name]())
