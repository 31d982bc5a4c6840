"""Programs as other people write them compute what eager computes: those that need torch and transformers only.

`bash scripts/workflows.sh` runs the others, in an environment of their own.
"""

from __future__ import annotations

import pytest

from scripts.workflows.cell import CLOSE, EQUAL, compared, run_once, settings
from scripts.workflows.rows import ROWS, Row

NEAR_TO_OTHERS = ("exponential_moving_average", "maml", "pinn_of_transforms", "sgd_cosine", "stochastic_weight_averaging")
HERE = [row for row in ROWS if row.needs in ("torch", "transformers") and row.name not in NEAR_TO_OTHERS]
"""A fifth of the programs."""


# Dynamo asks each tensor of a module for its gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])
@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_a_program_computes_what_eager_computes(row: Row, backend: str):
    if row.needs == "transformers":
        pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    with settings():
        cell = compared(row, run_once(row, None), run_once(row, backend))
    assert cell.outcome in (EQUAL, CLOSE), cell.to_line()
