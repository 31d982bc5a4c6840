"""How many bytes a forward pass keeps alive for its backward, measured the same way for every backend.

    bytes_kept = saved_bytes(lambda: model(tokens, targets), exclude=model.parameters())

Every backend, and eager itself, saves through autograd, so the hooks of
`torch.autograd.graph.saved_tensors_hooks` see all of it. A storage counts once and in full, however many tensors view
it. Limit: tensors that an `autograd.Function` keeps as attributes of its context are not seen.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def saved_bytes(forward: Callable[[], object], exclude: Iterable[Tensor] = ()) -> int:
    """Run `forward` once and return the bytes of the distinct storages it saved.

    Args:
        forward: the forward pass; its result stays alive during the count.
        exclude: tensors that are alive anyway, such as parameters.
    """
    bytes_by_address: dict[int, int] = {}
    kept: list[Tensor] = []  # A freed and reallocated storage would hide behind its own address.

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        bytes_by_address[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    for tensor in exclude:
        bytes_by_address.pop(tensor.untyped_storage().data_ptr(), None)
    del result
    return sum(bytes_by_address.values())
