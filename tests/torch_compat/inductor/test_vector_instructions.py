"""Feature tests of `aotgrad/torch_compat/inductor/vector_instructions.py`, in processes where Inductor knows nothing yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from aotgrad import torch_compat as compat

PROGRAM = """
import contextlib, json
from unittest import mock
from torch._inductor import codecache, config, cpu_vec_isa
from aotgrad import torch_compat as compat
from aotgrad.torch_compat.inductor import vector_instructions as module

tried, check_build = [], cpu_vec_isa.VecISA.check_build

def counted(self, code):
    tried.append(code)
    return {check}

{before}
with mock.patch.object(cpu_vec_isa.VecISA, "check_build", counted), {around}:
    found = [[str(isa), isa.build_arch_flags(), isa.build_macro()] for isa in cpu_vec_isa.valid_vec_isa_list()]
    best = str(cpu_vec_isa.pick_vec_isa())
print(json.dumps([found, best, len(tried)]))
"""
ONE_PROBE = f"compat.{compat.vector_instructions_by_one_probe.__name__}()"


def instructions(around: str = ONE_PROBE, before: str = "", check: str = "check_build(self, code)") -> list:
    """What Inductor finds, its choice, and how many programs it has compiled for that."""
    program = textwrap.dedent(PROGRAM.format(around=around, before=before, check=check))
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_VEC_ISA_OK"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Inductor tries instructions by itself")
def test_one_probe_finds_what_inductor_finds_by_itself():
    by_itself = instructions(around="contextlib.nullcontext()")
    assert instructions() == [*by_itself[:2], 0]
    assert by_itself[2] > 0 or not by_itself[0]


def test_inductor_tries_by_itself_if_the_probe_does_not_compile():
    found, _, tried = instructions(before='module._PROBE = "#error no compiler takes this"', check="True")
    assert tried > 0 or not found


def test_a_setting_of_the_user_counts():
    assert instructions(before="config.cpp.vec_isa_ok = False")[::2] == [[], 0]
