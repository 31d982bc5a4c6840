"""One contract per stage: a check raises `ContractError` and names the slot, node or step that breaks the contract.

    check_stage("joint", joint)      ContractError: joint: gradient of primal 0 is f64[3] (mul_1), the primal is f32[3]

`AOTGRAD_VERIFY=1` or the option `verify` turns the checks on; the tests run with them. A failed check is a bug in aotgrad,
in a pass, or in a custom partition function, never in the user's program. `capture`, `analysis`, `joint`, `partition` and
`executable` have the check of each stage, `common` what they share. A check reads the result of its stage only; that of
`executable`, the last stage, sees all stages together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotgrad.errors import ContractError
from aotgrad.ir import GraphHalf, JointGraph
from aotgrad.verify.analysis import check_meta
from aotgrad.verify.capture import check_capture
from aotgrad.verify.common import Problems, check_graph
from aotgrad.verify.executable import check_compiled, check_executable
from aotgrad.verify.joint import check_joint
from aotgrad.verify.partition import check_partition

CHECKS: dict[str, Callable[[Any], Problems]] = {
    "capture": check_capture,
    "analysis": check_meta,
    "joint": check_joint,
    "partition": check_partition,
    "compiled": check_compiled,
    "executable": check_executable,
}


def check_pass(place: str, name: str, graph: JointGraph | GraphHalf) -> None:
    """Check a graph after a pass.

    Raises:
        ContractError: names the pass and the problem.
    """
    found = check_joint(graph) if isinstance(graph, JointGraph) else check_graph(graph.module, graph.signature)
    for problem in found:
        raise ContractError(f"{place} pass {name}: {problem}")


def check_stage(stage: str, result: Any) -> None:
    """Check the result of one stage; a stage without a contract passes.

    Raises:
        ContractError: names the stage and the problem.
    """
    for problem in CHECKS[stage](result) if stage in CHECKS else ():
        raise ContractError(f"{stage}: {problem}")
