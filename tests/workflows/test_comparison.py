"""What the comparison of two runs of a program sees."""

from __future__ import annotations

import math

import pytest
import torch

from scripts.workflows.cell import CLOSE, DIFFERS, EQUAL, NOT_COMPILED, Cell, compared, compilations, run_once, settings
from scripts.workflows.compare import Difference, difference
from scripts.workflows.report import page
from scripts.workflows.rows import BY_NAME, ROWS
from scripts.workflows.run import Run
from scripts.workflows.sweep import PROBED, read_cells, sweep

ONE = torch.ones(3)


def test_runs_that_are_equal_to_the_bit():
    assert difference({"a": ONE, "b": None}, {"a": ONE.clone(), "b": None}).relative == 0.0


@pytest.mark.parametrize(
    "other",
    [None, ONE.double(), torch.ones(1, 3), torch.tensor([1.0, 1.0, math.nan])],
    ids=["None", "dtype", "shape", "NaN"],
)
def test_what_no_tolerance_allows(other):
    assert difference({"a": ONE}, {"a": other}) == Difference("a", math.inf)


def test_an_observation_that_only_one_run_has():
    assert difference({"a": ONE}, {}).relative == math.inf


def test_a_difference_is_over_the_largest_item_of_its_tensor():
    found = difference({"a": ONE, "b": 100 * ONE}, {"a": 1.5 * ONE, "b": 101 * ONE})
    assert found == Difference("a", 0.5)


def test_a_gradient_that_is_rounding_only_is_compared_with_those_beside_it():
    expected = {"step 0 gradient w": ONE, "step 0 gradient b": 1e-9 * ONE}
    found = {"step 0 gradient w": ONE, "step 0 gradient b": -1e-9 * ONE}
    assert difference(expected, found).relative == pytest.approx(2e-6)


def test_a_run_tells_losses_and_gradients():
    run = Run(None)
    model = run.compile(torch.nn.Linear(2, 1))
    loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    run.step(loss, model)
    assert list(run.observations) == ["step 0 loss", "step 0 gradient weight", "step 0 gradient bias"]
    assert torch.equal(run.observations["step 0 gradient weight"], torch.ones(1, 2))
    with pytest.raises(ValueError, match="was observed before"):
        run.observe("step 0 loss", loss)


def test_a_program_that_compiles_nothing_is_no_success():
    with settings():
        eager = run_once(BY_NAME["pinn"], None)
        unchanged = run_once(BY_NAME["pinn"], None)
        unchanged.backend = "aotgrad"
        assert compared(BY_NAME["pinn"], eager, unchanged).outcome == NOT_COMPILED


def test_results_are_kept_and_a_line_that_was_cut_off_is_left_out(tmp_path):
    cell = Cell("pinn", "aotgrad", CLOSE, "step 1 loss", difference=1e-6)
    (tmp_path / "results.jsonl").write_text(cell.to_line() + "\n" + cell.to_line()[:30])
    assert read_cells(tmp_path) == {("pinn", "aotgrad"): cell}


def test_a_result_is_judged_by_the_tolerance_of_today(tmp_path):
    found = [
        Cell("pinn", "aotgrad", CLOSE, "loss", difference=0.5),
        Cell("pinn", "inductor", DIFFERS, "loss", difference=1e-7),
    ]
    (tmp_path / "results.jsonl").write_text("\n".join(cell.to_line() for cell in found) + "\n")
    assert [cell.outcome for cell in read_cells(tmp_path).values()] == [DIFFERS, CLOSE]


def test_a_process_that_does_not_end_costs_its_own_cell(tmp_path):
    (tmp_path / PROBED).mkdir()
    (cell,) = sweep([(BY_NAME["pinn"], "aotgrad")], tmp_path, limit_s=0.1)
    assert cell.outcome == "timed out" and read_cells(tmp_path) == {cell.key: cell}


def test_the_document_says_who_differs_and_who_raises():
    equal = Cell("pinn", "aotgrad", EQUAL, "step 0 loss", 0.0, None, 1e-3, 2e-3, 1.0, 2.0, 3, 0, "torch 2")
    raised = Cell("pinn", "inductor", "raises", "RuntimeError: no second backward\nmore", versions="torch 2")
    differs = Cell("maml", "aotgrad", DIFFERS, "step 1 loss", 0.5)
    text = page({cell.key: cell for cell in (equal, raised, differs)}, "make")
    assert "raises: `RuntimeError: no second backward`" in text and "**5e-01**" in text and "2.00" in text
    assert "differs by 5e-01 at step 1 loss" in text


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_inductor_means_aotgrad_where_a_framework_compiles():
    with settings(), Run("aotgrad").installed() as name:
        compiled = torch.compile(lambda x: (x * 2).sin(), backend=name)
        assert name == "inductor" and torch.allclose(compiled(ONE), (ONE * 2).sin())
        assert compilations("aotgrad") == 1
    for backend in (None, "inductor", "aotgrad_eager"):
        with Run(backend).installed() as name:
            assert name == backend


def test_names_are_unique():
    assert len(BY_NAME) == len(ROWS)
