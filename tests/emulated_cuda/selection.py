"""The part of the suites that `scripts/test.sh` runs on the emulated device, and so CI: what depends most on the device.

AOTGRAD_TEST_DEVICE=emulated python -m pytest -n 2 $(python -m tests.emulated_cuda.selection)
"""

from __future__ import annotations

SELECTION = {
    "tests/emulated_cuda": "the device itself, Inductor's Triton kernels, programs that were wrong on GPUs",
    "tests/runtime": "plans run on the threads of devices",
    "tests/numerics/test_aliases.py": "the memory of the device",
    "tests/numerics/test_api.py": "modules, buffers, autocast of the device",
    "tests/numerics/test_autocast.py": "autocast of the device",
    "tests/numerics/test_batched_backward.py": "transforms on the threads of devices",
    "tests/numerics/test_generators.py": "generators of the device",
    "tests/numerics/test_gradient_layouts.py": "gradients in the memory of the device",
    "tests/numerics/test_hooks.py": "hooks run on the threads of devices",
    "tests/numerics/test_keys.py": "another device is another plan",
    "tests/numerics/test_outputs.py": "aliases of the memory of the device",
    "tests/numerics/test_random.py": "random state of the device",
    "tests/models/test_models.py::test_eager_halves_train_as_eager": "models",
    "tests/conformance/test_ops.py::test_a_tenth_of_the_operators[static]": "operators and modules, with first gradients",
}
"""The arguments of pytest, each with what it shows."""

if __name__ == "__main__":
    print(*SELECTION, sep="\n")
