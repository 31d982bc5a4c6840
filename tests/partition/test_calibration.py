"""The measured figure is plausible, is stored, and never fails a compilation."""

from __future__ import annotations

import json

import pytest
import torch

import aotgrad
from aotgrad.partition import Objective, calibration, min_cut_rematerialization_partition, partition
from tests.numerics.against_eager import assert_like_eager, leaf
from tests.partition.joints import joint_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path / "cache"))
    calibration.measured_flops_per_byte.cache_clear()
    yield tmp_path / "cache"
    calibration.measured_flops_per_byte.cache_clear()


@pytest.fixture
def measurements(monkeypatch):
    made: list[torch.dtype] = []

    def measure(_device, dtype):
        made.append(dtype)
        return 7

    monkeypatch.setattr(calibration, "measure", measure)
    return made


def test_it_is_a_number_of_operations():
    assert 0 < calibration.measure(CPU, torch.float32) <= calibration.MOST


def test_it_is_measured_once_for_all_processes(folder, measurements):
    for _process in range(2):
        assert calibration.measured_flops_per_byte(CPU, torch.float32) == 7
        calibration.measured_flops_per_byte.cache_clear()
    assert measurements == [torch.float32]
    assert list(json.loads((folder / "calibration.json").read_text()).values()) == [7]
    assert [path.name for path in folder.iterdir()] == ["calibration.json"]


def test_each_dtype_has_its_own(measurements):
    calibration.measured_flops_per_byte(CPU, torch.float32)
    calibration.measured_flops_per_byte(CPU, torch.bfloat16)
    assert measurements == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("text", ["", "[1]", '{"cpu": "many"}', '{"a": -1}', "\x00"])
def test_a_file_that_makes_no_sense_is_written_anew(folder, measurements, text):
    folder.mkdir()
    (folder / "calibration.json").write_text(text)
    assert calibration.measured_flops_per_byte(CPU, torch.float32) == 7
    assert list(json.loads((folder / "calibration.json").read_text()).values()) == [7]


def test_a_folder_that_cannot_be_written_does_no_harm(folder, measurements):
    folder.write_text("a file, and no folder")
    assert calibration.measured_flops_per_byte(CPU, torch.float32) == 7


def test_the_largest_product_decides(measurements):
    wide = leaf(8, 8, dtype=torch.float64)
    joint = joint_of(lambda x, y: (x @ x).sin().sum() + (y @ y).sum(), wide, leaf(2, 2))
    partition(joint, min_cut_rematerialization_partition, Objective(flops_per_byte="measured"))
    assert measurements == [torch.float64]


def test_a_graph_without_products_needs_none(measurements):
    joint = joint_of(lambda x: x.sin().cos(), leaf(8))
    partition(joint, min_cut_rematerialization_partition, Objective(flops_per_byte="measured"))
    assert measurements == []


def test_the_figure_decides_what_runs_again():
    def saved(flops_per_byte):
        x, w = leaf(64, 64), leaf(64, 64)
        joint = joint_of(lambda x, w: ((x @ w).sin() @ w).erf().exp().sin().exp().sum(), x, w)
        objective = Objective(memory_budget=3 * 64 * 64 * 4, fuses=False, flops_per_byte=flops_per_byte)
        return {value.slot.name for value in partition(joint, min_cut_rematerialization_partition, objective).saved}

    assert saved(1) != saved(4096)


@pytest.mark.parametrize("figure", [5, "measured"])
def test_as_an_option(figure):
    options = {"flops_per_byte": figure, "memory_budget": 0.5}
    assert_like_eager(lambda x: (x @ x).sin() @ x, lambda: (leaf(8, 8),), "eager", options=options)


@pytest.mark.parametrize("figure", [0, -1, 2.5, "guessed", True])
def test_other_values_are_refused(figure):
    with pytest.raises(aotgrad.errors.OptionError, match="legal values are 1 to 4096, 'measured', None"):
        aotgrad.Options(flops_per_byte=figure)
