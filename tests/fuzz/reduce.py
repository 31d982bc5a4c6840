"""Minimizes a program that differs: omits parts as long as it still differs in the same way.

reduced(program, differs)      a program with true `differs` from which no single part can be omitted
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.program import Apply, Backward, Block, Leaf, Name, Program, Round, Statement, names_in


def reduced(program: Program, differs: Callable[[Program], bool]) -> Program:
    """The smallest program reached by omitting one part at a time."""
    while True:
        for candidate in smaller(program):
            if differs(candidate):
                program = candidate
                break
        else:
            return program


def smaller(program: Program) -> Iterator[Program]:
    """The programs with one part omitted, large parts first."""
    for rounds in without_one(program.rounds):
        if rounds:
            yield replace(program, rounds=rounds)
    for k, round in enumerate(program.rounds):
        for fewer in smaller_rounds(round):
            yield replace(program, rounds=(*program.rounds[:k], fewer, *program.rounds[k + 1 :]))
    for body in smaller_blocks(program.body):
        yield replace(program, body=body)
    for result in smaller_results(program.result):
        yield replace(program, result=result)
    for position in range(len(program.parameters)):
        yield without_parameter(program, position)


def smaller_rounds(round: Round) -> Iterator[Round]:
    for actions in smaller_blocks(round.actions):
        yield replace(round, actions=actions)
    for setup in smaller_blocks(round.setup):
        yield replace(round, setup=setup)
    if round.context:
        yield replace(round, context="")


def smaller_blocks(statements: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """Without one statement, or with a simpler one. The last statements come first: nothing depends on them."""
    for k in reversed(range(len(statements))):
        before, after = statements[:k], statements[k + 1 :]
        yield (*before, *after)
        for simpler in simpler_statements(statements[k]):
            yield (*before, *simpler, *after)


def simpler_statements(statement: Statement) -> Iterator[tuple[Statement, ...]]:
    match statement:
        case Block(context, body):
            yield body
            yield from ((Block(context, fewer),) for fewer in without_one(body) if fewer)
        case Backward(roots):
            yield from ((replace(statement, roots=fewer),) for fewer in without_one(roots) if fewer)
            for flag in ("expanded", "retain_graph", "create_graph"):
                if getattr(statement, flag):
                    yield (replace(statement, **{flag: False}),)
            if statement.inputs:
                yield (replace(statement, inputs=()),)
        case Leaf(shape=shape):
            yield from ((replace(statement, shape=fewer),) for fewer in without_one(shape))
            if statement.requires_grad:
                yield (replace(statement, requires_grad=False),)
        case Apply(target, template, operands) if template != "{0}.clone()" and "," not in target and "hook" not in template:
            yield (Apply(target, "{0}.clone()", operands[:1]),) if target else ()


def smaller_results(result: Any) -> Iterator[Any]:
    names = [Name(name) for name in names_in(result)]
    if len(names) > 1:
        yield from (tuple(fewer) for fewer in without_one(tuple(names)))
    if len(names) == 1 and not isinstance(result, Name):
        yield names[0]


def without_parameter(program: Program, position: int) -> Program:
    """The function with one argument fewer."""

    def dropped(items: tuple) -> tuple:
        return (*items[:position], *items[position + 1 :])

    rounds = tuple(replace(round, arguments=dropped(round.arguments)) for round in program.rounds)
    return replace(program, parameters=dropped(program.parameters), rounds=rounds)


def without_one(items: tuple) -> Iterator[tuple]:
    for k in reversed(range(len(items))):
        yield (*items[:k], *items[k + 1 :])
