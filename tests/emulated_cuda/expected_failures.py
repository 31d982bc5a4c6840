"""Tests of the suites that fail on the emulated device, each with the reason. A row whose test passes fails.

`GAPS` are of the emulator, as docs/emulated_cuda.md lists them. `DEFECTS` are aotgrad's own on GPUs. A row names a test with
its parameters, or with none for all of them, or a file; `*` stands for any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SPARSE = "sparse tensors"
CANCELS = "a sum that cancels rounds in another way"
FUSED_CELLS = "fused RNN cells"
NORMAL = "torch's default device does not apply to `torch.normal` of two numbers"
CPU_STATE = "the test sets the state of the CPU's generator, and draws from the device's"
NAMED_CPU = "the test names the CPU as the default device"

GAPS: Mapping[str, str] = {
    "models/test_models.py::test_eager_halves_train_as_eager[graph_network]": FUSED_CELLS,
    "models/test_models.py::test_eager_halves_train_as_eager[lstm]": FUSED_CELLS,
    "models/test_models.py::test_eager_halves_train_as_eager[lstm_cell]": FUSED_CELLS,
    "models/test_models.py::test_eager_halves_train_as_eager[qwen_moe]": "the CPU has no histogram of integers",
    "numerics/test_autocast.py::test_second_order[*bfloat16-weight_used_twice]": CANCELS,
    "numerics/test_generators.py::test_random_ops[normal of numbers-*]": NORMAL,
    "numerics/test_gradient_layouts.py::test_gradients_are_those_of_eager[*sparse*]": SPARSE,
    "numerics/test_gradient_layouts.py::test_gradients_are_those_of_eager[channels_last_input-interpreter]": (
        "a convolution of the CPU keeps a memory format that CUDA's without cuDNN does not keep"
    ),
    "numerics/test_keys.py::test_another_default_device[*]": NAMED_CPU,
    "numerics/test_random.py::test_a_function_that_sets_the_generator_is_refused[*computes_with_the_state]": CPU_STATE,
    "numerics/test_random.py::test_a_function_that_sets_the_generator_is_refused[*draws_and_goes_back]": CPU_STATE,
    "numerics/test_triton_package.py": "a user's Triton kernel under a trace",
    "runtime/test_emit.py::test_size_expressions": SPARSE,
}

DEFECTS: Mapping[str, str] = {
    "models/test_models.py::test_eager_halves_train_as_eager[mamba]": "a gradient is summed in another order",
}

ORDER_DEPENDENT: Mapping[str, str] = {
    "numerics/test_generators.py::test_random_ops[binomial-*]": "the first trace of an op without a shape function draws",
}
"""Defects that show only in the first test of a process: these tests are skipped."""

MACHINE_DEPENDENT: Mapping[str, str] = {
    "numerics/test_gradient_layouts.py::test_gradients_are_those_of_eager[channels_last_input-*inductor]": (
        "whether a convolution of the CPU keeps a memory format depends on its vector extensions"
    ),
}
"""Tests that pass on some machines only: skipped on all."""


def reason_of(node: str, rows: Mapping[str, str]) -> str | None:
    """The reason of the row for a test, by its id in pytest."""
    name = node.removeprefix("tests/")
    return next((reason for row, reason in rows.items() if matches(row, name)), None)


def matches(row: str, name: str) -> bool:
    """
    >>> matches("a.py::test[*-nop]", "a.py::test[x-nop]"), matches("a.py::test", "a.py::test[x]"), matches("a.py", "b.py")
    (True, True, False)
    """
    pattern = ".*".join(map(re.escape, row.split("*")))
    return re.fullmatch(rf"{pattern}(\[.*\]|::.*)?", name) is not None
