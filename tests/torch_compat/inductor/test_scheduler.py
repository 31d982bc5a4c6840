"""Feature tests of `aotgrad/torch_compat/inductor/scheduler.py`."""

from __future__ import annotations

import sympy
import torch
from torch._inductor.dependencies import MemoryDep, ReadWrites
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.utils import fresh_cache
from torch.utils._ordered_set import OrderedSet

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import inductor


@inductor
def test_a_read_between_two_writes_is_of_what_the_first_one_left(fake_mode):
    def function(x):
        columns = x.as_strided_scatter(x.as_strided((5,), (5,), 1) * 2, (5,), (5,), 1)
        rows = columns.as_strided((4, 5), (5, 1), 5)
        return (columns.as_strided_scatter(rows.flip(0), (4, 5), (5, 1), 5),)

    x = torch.arange(25.0)
    module = torch.fx.experimental.proxy_tensor.make_fx(function, compat.inductor_decompositions(), tracing_mode="fake")(x)
    inputs = [fake_mode.from_tensor(x)]
    settings = compat.inductor_graph_settings(False)
    with fresh_cache(), compat.inductor_context(fake_mode, "default"), compat.check_reads_of_overwritten_values():
        compiled = compat.inductor_compile(module, inputs, static_input_idxs=[], is_inference=True, **settings)
    assert torch.equal(compiled([x.clone()])[0], function(x)[0])


class Node(SchedulerNode):
    """A node that reads what `buf1` has written to `buf0`."""

    def __init__(self) -> None:
        self.mutation_renames = {"buf0": "buf1"}
        self._compute_attrs()

    def _compute_attrs(self, *_, **__) -> None:
        reads = OrderedSet([MemoryDep("buf0", sympy.Integer(0), (), ())])
        self.read_writes = ReadWrites(reads, OrderedSet(), OrderedSet())

    def set_read_writes(self, read_writes: ReadWrites) -> None:
        self.read_writes = read_writes


def test_a_node_whose_loops_are_made_anew_reads_what_was_written():
    node = Node()
    with compat.keep_reads_of_written_values():
        node.recompute_size_and_body()
    assert [read.name for read in node.read_writes.reads] == ["buf1"]
