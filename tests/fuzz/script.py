"""A program as a standalone script that prints the differences between eager and compiled.

print(standalone(program, "the finding"))        `way`: the way of compiling (ways.py)
"""

from __future__ import annotations

import inspect

from tests.fuzz import helpers
from tests.fuzz.program import Program, Round, indented, source
from tests.fuzz.ways import WAYS

SHOW = """
def show(variables):
    for name, t in variables.items():
        if isinstance(t, torch.Tensor):
            kind = "leaf" if t.is_leaf else "with a grad_fn" if t.grad_fn is not None else ""
            flags = f"requires_grad={t.requires_grad} {kind} version={t._version} is_view={t._is_view()}"
            print(f"    {name} = {t.tolist()} {tuple(t.shape)} stride={t.stride()} {flags} grad={t.grad}")


def step(code, variables):
    print(code)
    try:
        exec(code, variables)
    except Exception as error:
        print(f"    raised {type(error).__name__}: {error}")
    leaves = torch.utils._pytree.tree_leaves(variables.get("result"))
    variables.update({f"o{k}": leaf for k, leaf in enumerate(leaves) if "o0" not in variables or f"o{k}" in variables})
    show(variables)
"""

MAIN = """
def scenario(f):
    for number, round in enumerate(rounds):
        print(f"--- round {number}")
        variables = {**globals(), "f": f, "log": {}}
        for code in round:
            step(code, variables)


def printed(f):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        scenario(f)
    return text.getvalue().splitlines()


warnings.simplefilter("ignore")
compiled = WAY(f, OPTIONS)
print("\\n".join(difflib.unified_diff(printed(f), printed(compiled), "eager", "compiled", lineterm="", n=4)))
"""


IMPORTS = """import contextlib
import difflib
import io
import warnings
from unittest import mock

import torch

import aotgrad
"""


def standalone(program: Program, found: str, way: str = "eager") -> str:
    """The script, with the finding on top."""
    comment = "\n".join(f"# {line}" for line in found.splitlines())
    compiler = WAYS[way]
    parts = [
        comment,
        IMPORTS,
        program.function(),
        rounds_text(program.rounds),
        helper_source(),
        inspect.getsource(compiler),
        SHOW,
        MAIN.replace("WAY", compiler.__name__).replace("OPTIONS", program.options),
    ]
    return "\n".join(parts)


def helper_source() -> str:
    return inspect.getsource(helpers).partition("import torch\n")[2]


def rounds_text(rounds: tuple[Round, ...]) -> str:
    lines = ["rounds = ["]
    for round in rounds:
        codes = [source(round.setup), round.call(), *(source((action,)) for action in round.actions)]
        lines += indented(["[", *indented(f'"""{code}""",' for code in codes), "],"])
    return "\n".join([*lines, "]", ""])
