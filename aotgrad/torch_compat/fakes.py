"""Fake tensors: created from real ones, from metadata, in shared memory, or as views of one another."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.nested._internal.nested_int import NestedIntNode
from torch.nested._internal.nested_tensor import get_tensor_symint
from torch.utils._python_dispatch import _disable_current_modes

from aotgrad.torch_compat.memory import has_storage
from aotgrad.torch_compat.ops import NEGATE
from aotgrad.torch_compat.shapes import AskingShapeEnv
from aotgrad.torch_compat.transforms import is_wrapped


def new_fake_mode() -> FakeTensorMode:
    """A fake tensor mode with a new shape environment; real tensors met inside the function become constants."""
    return FakeTensorMode(shape_env=AskingShapeEnv(), allow_non_fake_inputs=True, static_shapes=True)


class Metadata:
    """What a fake without symbols is, memory aside. Interned by `metadata_of` as far as the cache reaches."""

    __slots__ = ("described", "device", "dtype", "size", "stride")

    def __init__(self, fake: FakeTensor) -> None:
        self.size, self.stride, self.dtype = fake.size(), fake.stride(), fake.dtype
        self.device = fake.fake_device
        self.described = _extract_tensor_metadata(fake)


_MOST_METADATA = 50_000
_metadata: dict[tuple, Metadata] = {}


def metadata_of(value: Any) -> Metadata | None:
    """The metadata of a fake; `None` for an unusual one."""
    if type(value) is not FakeTensor or value.layout is not torch.strided or value._has_symbolic_sizes_strides:
        return None
    if value.is_conj() or value.is_neg() or value._is_zerotensor() or value.is_quantized or value.requires_grad:
        return None
    if value.constant is not None or value.is_inference() or value.real_tensor is not None:
        return None
    key = (value.dtype, value.fake_device, value.size(), value.stride(), value.storage_offset())
    found = _metadata.get(key)
    if found is None:
        if len(_metadata) >= _MOST_METADATA:
            _metadata.clear()
        found = _metadata[key] = Metadata(value)
    return found


def metadata_of_new(value: Any) -> Metadata | None:
    """The metadata of a fake with exactly the memory that `new_fake` would allocate; `None` for others."""
    metadata = metadata_of(value)
    if metadata is None or value.storage_offset() != 0:
        return None
    return metadata if value.untyped_storage().nbytes() == _bytes_spanned(value) else None


def new_fake(mode: FakeTensorMode, metadata: Metadata) -> FakeTensor:
    """A fake with memory of its own."""
    return _new_fake(mode, metadata.size, metadata.stride, metadata.dtype, metadata.device)


def _new_fake(mode: FakeTensorMode, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> FakeTensor:
    with torch._C._DisableTorchDispatch(), torch._C._DisablePythonDispatcher():
        return FakeTensor(mode, torch.empty_strided(size, stride, dtype=dtype, device="meta"), device)


def is_whole_storage(value: Any) -> bool:
    """Whether a value is an ordinary real tensor, no view, that covers its storage."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not has_storage(value) or value.device.type == "meta":
        return False
    if value._base is not None or value.is_conj() or value.is_neg() or value._is_zerotensor() or value.is_inference():
        return False
    if value.is_nested or value.is_quantized or value.is_mkldnn or is_wrapped(value) or torch._is_functional_tensor(value):
        return False
    return value.storage_offset() == 0 and value.untyped_storage().nbytes() == _bytes_spanned(value)


def _bytes_spanned(tensor: torch.Tensor) -> int:
    """How many bytes `empty_strided` allocates for the geometry of a tensor."""
    if 0 in tensor.size():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def fake_of_whole(mode: FakeTensorMode, tensor: torch.Tensor) -> FakeTensor:
    """A detached fake of a tensor that `is_whole_storage`."""
    return _new_fake(mode, tensor.size(), tensor.stride(), tensor.dtype, tensor.device)


def view_of_fake(mode: FakeTensorMode, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of one of `ORDINARY_VIEWS` for a fake of `mode`."""
    with torch._C._DisablePythonDispatcher(), in_kernel_invocation_manager(mode):
        views = op(*args, **kwargs)
    device = args[0].fake_device
    if isinstance(views, torch.Tensor):
        return FakeTensor(mode, views, device)
    return type(views)(FakeTensor(mode, view, device) for view in views)


def negated_as(fake: FakeTensor, tensor: torch.Tensor) -> FakeTensor:
    """A fake of `tensor`, negated as that: torch's fakes of tensors that are no views lack the bit."""
    return fake if fake.is_neg() == tensor.is_neg() else view_of_fake(fake.fake_mode, NEGATE, (fake,), {})


def dynamic_fake(mode: FakeTensorMode, tensor: torch.Tensor, dims: Collection[int], index: int) -> FakeTensor:
    """A fake of `tensor` whose sizes at `dims` are symbolic, except 0 and 1, which stay specialized."""
    kinds = [DimDynamic.DYNAMIC if dim in dims else DimDynamic.STATIC for dim in range(tensor.dim())]
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    return mode.from_tensor(tensor, static_shapes=False, symbolic_context=context, source=argument_source(index))


def symbolic_inputs(mode: FakeTensorMode, values: Sequence[Any]) -> list[Any]:
    """Fakes with symbolic sizes, and symbols for integers. Equal numbers share a symbol; 0 and 1 have none."""
    return [_symbolic_input(mode, index, value) for index, value in enumerate(values)]


def _symbolic_input(mode: FakeTensorMode, index: int, value: Any) -> Any:
    """See `symbolic_inputs`."""
    source = argument_source(index)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * value.dim())
        return mode.from_tensor(value, static_shapes=False, symbolic_context=context, source=source)
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value, static_shapes=True)
    if type(value) is not int:
        return value
    symbol = mode.shape_env.create_symbol(value, source, DimDynamic.DUCK)
    return mode.shape_env.create_symintnode(symbol, hint=value, source=source)


class _FixedNestedInt(NestedIntNode):
    """A nested int whose product with a symbol, as a stride of a nested tensor, makes the symbol static."""

    def mul(self, other: Any) -> _FixedNestedInt:
        factor = other.constant_int() if other.is_constant() else other.guard_int("", 0)
        return _FixedNestedInt(self.t_id, self.coeff * factor)


def fixed_nested_int(number: torch.SymInt) -> torch.SymInt:
    """The size of a nested tensor: a symbol that multiplies it is specialized."""
    return torch.SymInt(_FixedNestedInt(number.node.nested_int(), number.node.nested_int_coeff()))


@contextlib.contextmanager
def fixed_nested_ints(mode: FakeTensorMode) -> Iterator[None]:
    """Inside, the size of a nested tensor with offsets of the trace is no symbol, which no placeholder would have."""

    def make(*, nt_tensor_id: int | None = None) -> torch.SymInt:
        with _disable_current_modes():
            return fixed_nested_int(get_tensor_symint(torch.empty(0)))

    with mock.patch.object(mode, "create_symbolic_nested_int", make):
        yield


def detached_fake(fake: FakeTensor) -> FakeTensor:
    """`fake.detach()`, with the symbolic number of its `item()`."""
    item, nested_int = item_of_fake(fake), getattr(fake, "nested_int_memo", None)
    if type(fake) is FakeTensor and fake.layout is torch.strided and item is None and nested_int is None:
        return view_of_fake(fake.fake_mode, torch.ops.aten.detach.default, (fake,), {})
    detached: Any = fake.detach()
    set_item_of_fake(detached, item)
    if nested_int is not None:
        detached.nested_int_memo = nested_int  # the size of nested tensors with these offsets
    return detached


def item_of_fake(fake: torch.Tensor) -> Any:
    """The symbolic number that `item()` of a fake returns, if known."""
    return getattr(fake, "item_memo", None)


def set_item_of_fake(fake: torch.Tensor, number: Any) -> None:
    """Set the symbolic number that `item()` of a fake returns; `None` changes nothing."""
    if number is not None:
        fake.item_memo = number  # pyright: ignore[reportAttributeAccessIssue]


def argument_source(index: int) -> Any:
    """The source of argument `index` in the shape environment."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(f"argument_{index}")


def mark_parameters(traced: Sequence[Any], tensors: Sequence[torch.Tensor | None]) -> None:
    """Make `isinstance(traced, nn.Parameter)` true where it is for the real tensor."""
    for value, tensor in zip(traced, tensors, strict=True):
        if isinstance(tensor, torch.nn.Parameter):
            mark_parameter(value)


def mark_parameter(value: Any) -> None:
    """Make `isinstance(value, nn.Parameter)` true."""
    value._is_param = True


def meta_storage(nbytes: Any) -> torch.UntypedStorage:
    """A storage for fakes, without memory; its size may be symbolic."""
    if type(nbytes) is int:
        return torch.UntypedStorage(nbytes, device="meta")
    with nbytes.node.shape_env.suppress_guards():
        return torch.empty((nbytes,), dtype=torch.uint8, device="meta").untyped_storage()


class LazyBits(NamedTuple):
    """What a tensor has yet to compute of its memory."""

    conjugated: bool = False
    negated: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> LazyBits:
        return cls(tensor.is_conj(), tensor.is_neg())

    def on(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of a tensor without bits, or the tensor itself."""
        tensor = tensor.conj() if self.conjugated else tensor
        return NEGATE(tensor) if self.negated else tensor


class SparseForm(NamedTuple):
    """The structure of a sparse tensor besides its size; `block` is the size of the blocks of a blocked layout."""

    layout: torch.layout
    sparse_dim: int
    dense_dim: int
    is_coalesced: bool
    block: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> SparseForm:
        is_coo, is_blocked = tensor.layout is torch.sparse_coo, tensor.layout in (torch.sparse_bsr, torch.sparse_bsc)
        block = tuple(tensor.values().shape[-2 - tensor.dense_dim() :][:2]) if is_blocked else ()
        return cls(tensor.layout, tensor.sparse_dim(), tensor.dense_dim(), is_coo and tensor.is_coalesced(), block)

    def without_entries(self, size: Sequence[int], dtype: torch.dtype, device: Any) -> torch.Tensor:
        """A sparse tensor of this structure; all its elements are zero."""
        dense = tuple(size[len(size) - self.dense_dim :])
        if self.layout is torch.sparse_coo:
            indices = torch.empty(self.sparse_dim, 0, dtype=torch.int64, device=device)
            values = torch.empty(0, *dense, dtype=dtype, device=device)
            return torch.sparse_coo_tensor(
                indices, values, tuple(size), is_coalesced=self.is_coalesced, check_invariants=False
            )
        *batch, rows, columns = size[: len(size) - self.dense_dim]
        is_by_row = self.layout in (torch.sparse_csr, torch.sparse_bsr)
        lines = rows // (self.block or (1, 1))[0] if is_by_row else columns // (self.block or (1, 1))[1]
        starts = torch.zeros(*batch, lines + 1, dtype=torch.int64, device=device)
        places = torch.empty(*batch, 0, dtype=torch.int64, device=device)
        values = torch.empty(*batch, 0, *self.block, *dense, dtype=dtype, device=device)
        return torch.sparse_compressed_tensor(
            starts, places, values, tuple(size), layout=self.layout, check_invariants=False
        )

    def fake_in(self, mode: FakeTensorMode, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> FakeTensor:
        return FakeTensor(mode, self.without_entries(size, dtype, "meta"), device)


def fake_in(
    mode: FakeTensorMode,
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    device: torch.device,
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any,
    bits: LazyBits | None = None,
) -> FakeTensor:
    """A fake in `storage`, which it may share with others. Symbolic sizes add no guards."""
    with contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards():
        meta = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, size, stride)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return FakeTensor(mode, meta if bits is None else bits.on(meta), device)
