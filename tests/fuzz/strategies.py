"""Draws programs. Each drawn statement is tried in eager first, so that most programs run to their end.

@given(programs())
def test(program): check(program)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from torch import Tensor

from aotgrad import torch_compat
from tests.fuzz import operations
from tests.fuzz.program import Apply, Backward, Block, Gradients, Leaf, Name, Program, Round, Statement, source
from tests.fuzz.worlds import World, asked, define, storage_of

T = TypeVar("T")

SHAPES = ((3,), (2, 3), (4,), (2, 2), (3, 3), (3, 2), (1, 3), (2, 1, 3), (2, 2, 2), (4, 4), (), (2, 0), (8,))
DTYPES = (*("torch.float32",) * 8, "torch.float64", "torch.complex64", "torch.complex64", "torch.int64")
PARTITIONERS = ("aotgrad.min_cut_rematerialization_partition", "aotgrad.default_partition")
BUDGETS = ("0.0", "0.3", "0.7", "64", "100")
BUDGET_OF = ("'saved'", "'peak'")
POLICIES = ("'save'", "'recompute'", "'offload'", "'offload'")
DYNAMIC = (*("False",) * 6, "None", "True")
WRITES_FROM_OPERAND = tuple(template for template in (*operations.IN_PLACE, *operations.ASSIGNMENTS) if "{1}" in template)
LARGEST = 64
"""Elements of the largest tensor that statements go on with."""


class Draw:
    """Choices of one example. The first of several, and `False`, are the simplest."""

    def __init__(self, draw: Callable) -> None:
        self.draw = draw

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.number(0, len(values) - 1)]

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most)) if most > least else least

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def some_of(self, values: Sequence[T], most: int) -> list[T]:
        return [self.one_of(values) for _ in range(self.number(1, most))]

    def weighted(self, choices: Sequence[tuple[int, T]]) -> T:
        return self.one_of([value for weight, value in choices for _ in range(weight)])


@st.composite
def programs(draw: Callable) -> Program:
    """A function, and one to three calls of it."""
    choices = Draw(draw)
    setup, arguments, world = draw_setup(choices)
    parameters = tuple(f"p{k}" for k in range(len(arguments)))
    body, names = draw_body(choices, world, arguments)
    partition = choices.one_of(PARTITIONERS)
    options = f"aotgrad.nop, partition_fn={partition}, dynamic={choices.one_of(DYNAMIC)}"
    if chosen := draw_memory_options(choices, source(body)) if "min_cut" in partition else ():
        options += f", options={{{', '.join(chosen)}}}"
    program = Program(parameters, body, draw_result(choices, names), options)
    context = choices.weighted([(8, ""), (1, "torch.no_grad()"), (1, "torch.enable_grad()")])
    rounds = [draw_round(choices, program, Round(setup, arguments, context, ()))]
    for _ in range(choices.weighted([(2, 0), (3, 1), (2, 2)])):
        rounds.append(draw_round(choices, program, changed_setup(choices, program, rounds[-1])))
    return replace(program, rounds=tuple(rounds))


def draw_memory_options(choices: Draw, body: str) -> list[str]:
    """A budget, and a policy for the values of a body that have a name."""
    chosen = []
    if choices.chance(30):
        chosen += [f"'memory_budget': {choices.one_of(BUDGETS)}", f"'memory_budget_of': {choices.one_of(BUDGET_OF)}"]
    if "'named'" in body and choices.chance(70):
        chosen.append(f"'checkpoint_policies': {{'named': {choices.one_of(POLICIES)}}}")
    return chosen


# --- Arguments -------------------------------------------------------------------------------------------------------


def draw_setup(choices: Draw) -> tuple[tuple[Statement, ...], tuple[str, ...], World]:
    """Leaves, tensors with a history, views of both; the arguments are some of them."""
    maker = Maker(choices, World(lambda: None), "x")
    for k in range(choices.number(1, 3)):
        dtype = choices.one_of(DTYPES)
        leaf = Leaf(f"w{k}", choices.one_of(SHAPES), dtype, "int" not in dtype and not choices.chance(30))
        maker.add(leaf)
        if choices.chance(50):
            maker.add(Apply(maker.fresh(), "{0} * 1", (leaf.name,)))
    for _ in range(choices.weighted([(3, 0), (3, 1), (2, 2), (1, 3)])):
        maker.view()
    names = maker.tensors()
    arguments = tuple(choices.one_of(names[::-1]) for _ in range(choices.number(1, min(4, len(names)))))
    return tuple(maker.statements), arguments, maker.world


def changed_setup(choices: Draw, program: Program, earlier: Round) -> Round:
    """The arguments of the next call: as before, or other flags, shapes, offsets or aliases."""
    change = choices.one_of((same_arguments, other_flag, other_shape, other_aliases, own_memory, other_offset))
    changed = change(choices, earlier)
    is_bad = World(lambda: None).run(source(changed.setup)) is not None or has_unordered_writes(program, changed)
    return replace(earlier if is_bad else changed, actions=())


def has_unordered_writes(program: Program, round: Round) -> bool:
    """Whether the function writes to what it reads, at other elements, if it is called with the arguments of this round."""
    world = World(lambda: None)
    world.run(source(round.setup))
    arguments = [world.namespace[name] for name in round.arguments]
    world.namespace.update(zip(program.parameters, arguments, strict=True))
    for statement, line in lines_of(program.body):
        operands = [world.namespace.get(name) for name in getattr(statement, "operands", ())]
        if all(isinstance(value, Tensor) for value in operands) and is_unordered(statement, operands):
            return True
        world.run(source((line,)))
    return False


def lines_of(body: Sequence[Statement]) -> Iterator[tuple[Statement, Statement]]:
    """The statements of a body one by one, each also in its context."""
    for statement in body:
        if isinstance(statement, Block):
            yield from ((inner, Block(statement.context, (line,))) for inner, line in lines_of(statement.body))
        else:
            yield statement, statement


def same_arguments(choices: Draw, earlier: Round) -> Round:
    return earlier


def other_flag(choices: Draw, earlier: Round) -> Round:
    def flip(leaf: Leaf) -> Leaf:
        return replace(leaf, requires_grad=not leaf.requires_grad and "int" not in leaf.dtype)

    return replace(earlier, setup=with_leaf(choices, earlier.setup, flip))


def other_shape(choices: Draw, earlier: Round) -> Round:
    """Every leaf gets one more row, so that equal shapes stay equal."""

    def grown(leaf: Leaf) -> Leaf:
        return replace(leaf, shape=(leaf.shape[0] + 1, *leaf.shape[1:]) if leaf.shape else ())

    return replace(earlier, setup=tuple(grown(s) if isinstance(s, Leaf) else s for s in earlier.setup))


def with_leaf(choices: Draw, setup: Sequence[Statement], change: Callable[[Leaf], Leaf]) -> tuple[Statement, ...]:
    chosen = choices.one_of([k for k, statement in enumerate(setup) if isinstance(statement, Leaf)])
    return tuple(change(s) if k == chosen and isinstance(s, Leaf) else s for k, s in enumerate(setup))


def other_aliases(choices: Draw, earlier: Round) -> Round:
    """Replaces one argument by another one, or by a view of another one of the same shape."""
    position = choices.number(0, len(earlier.arguments) - 1)
    world = World(lambda: None)
    world.run(source(earlier.setup))
    dtype = world.namespace[earlier.arguments[position]].dtype
    other = choices.one_of([name for name in earlier.arguments if world.namespace[name].dtype == dtype])
    template = choices.one_of(("{0}", "{0}.view({0}.shape)", "{0}.detach()", "{0}.t()"))
    return with_argument(earlier, position, Apply("", template, (other,)))


def own_memory(choices: Draw, earlier: Round) -> Round:
    position = choices.number(0, len(earlier.arguments) - 1)
    template = choices.one_of(("{0}.clone()", "{0}.detach().clone()", "{0}.detach().clone().requires_grad_()"))
    return with_argument(earlier, position, Apply("", template, (earlier.arguments[position],)))


def other_offset(choices: Draw, earlier: Round) -> Round:
    """The same numbers elsewhere in a larger buffer."""
    position = choices.number(0, len(earlier.arguments) - 1)
    template = "torch.cat([{0}.reshape(-1)[:1], {0}.reshape(-1)])[1:].view({0}.shape)"
    return with_argument(earlier, position, Apply("", template, (earlier.arguments[position],)))


def with_argument(earlier: Round, position: int, made: Apply) -> Round:
    target = f"y{len(earlier.setup)}"
    arguments = [target if k == position else name for k, name in enumerate(earlier.arguments)]
    return replace(earlier, setup=(*earlier.setup, replace(made, target=target)), arguments=tuple(arguments))


# --- The function ----------------------------------------------------------------------------------------------------


def draw_body(choices: Draw, world: World, arguments: Sequence[str]) -> tuple[tuple[Statement, ...], list[str]]:
    """Statements on the parameters, and the final variables."""
    maker = Maker(choices, World(lambda: None), "v")
    maker.world.namespace.update({f"p{k}": world.namespace[name] for k, name in enumerate(arguments)})
    for _ in range(choices.number(1, 8)):
        maker.any_statement()
    return tuple(maker.statements), maker.tensors(largest=10**6)


def draw_result(choices: Draw, names: Sequence[str]) -> Any:
    """The result: variables, mostly late ones, in nested containers, and other values."""
    latest_first = [*names[::-1], *names[::-1][:3]]
    items = [Name(name) for name in choices.some_of(latest_first, 4)]
    if choices.chance(10):
        items.append(choices.one_of((None, 3)))
    if len(items) == 1 and not choices.chance(30):
        return items[0]
    kind = choices.one_of(("tuple", "list", "dict", "nested"))
    if kind == "dict":
        return {f"k{k}": item for k, item in enumerate(items)}
    if kind == "nested":
        return (items[0], items[1:])
    return tuple(items) if kind == "tuple" else items


# --- The caller ------------------------------------------------------------------------------------------------------


def draw_round(choices: Draw, program: Program, round: Round) -> Round:
    """The caller's actions after the call, tried in eager."""
    world = World(define(program))
    world.run(source(round.setup))
    if world.call(round.call()).error is not None:
        return round
    maker = Maker(choices, world, "c")
    for _ in range(choices.weighted([(2, 0), (3, 1), (3, 2), (2, 3), (1, 5)])):
        maker.any_action()
    if choices.chance(80):
        maker.backward_of_everything()
    return replace(round, actions=tuple(maker.statements))


class Maker:
    """Adds statements that eager accepts, and a few that it rejects; `prefix` starts the names of new variables."""

    def __init__(self, choices: Draw, world: World, prefix: str) -> None:
        self.choices = choices
        self.world = world
        self.prefix = prefix
        self.statements: list[Statement] = []
        self.made = 0
        self.changed_inputs = any(name[0] in "wxy" and value._version for name, value in world.tensors().items())

    def tensors(self, largest: int = LARGEST) -> list[str]:
        found = self.world.tensors().items()
        return [name for name, value in found if value.numel() <= largest and not name.startswith("g")]

    def fresh(self) -> str:
        self.made += 1
        return f"{self.prefix}{self.made - 1}"

    def operand(self) -> str:
        """Any tensor; the latest are the likeliest."""
        names = self.tensors()[::-1]
        return self.choices.one_of([*names, *names[:2]])

    def add(self, statement: Statement, keep_errors: int = 0) -> bool:
        """Run a statement and keep it, if it raises only in `keep_errors` of a hundred cases."""
        error = self.world.run(source((statement,)))
        if error is not None and not (keep_errors and self.choices.chance(keep_errors)):
            return False
        self.statements.append(statement)
        return error is None

    def apply(self, templates: Sequence[str], target: str) -> Apply:
        template = self.choices.one_of(templates)
        operands = (self.operand(), self.operand()) if "{1}" in template else (self.operand(),)
        tensors = [self.world.namespace[name] for name in operands]
        if any(value.is_complex() for value in tensors) and any(part in template for part in operations.REAL_ONLY):
            template = "{0}.conj()"
        statement = Apply(target, template, operands)
        return replace(statement, operands=(operands[0], operands[0])) if is_unordered(statement, tensors) else statement

    def statement(self) -> Statement:
        kind = self.choices.weighted(
            [
                (7, operations.FRESH),
                (8, operations.VIEWS),
                (6, operations.IN_PLACE),
                (1, operations.ASSIGNMENTS),
                (1, operations.METADATA),
                (1, operations.PIECES),
            ]
        )
        if kind is operations.PIECES:
            return self.pieces()
        if kind is operations.IN_PLACE and self.choices.chance(20):
            return self.apply(kind, self.fresh())
        returns = kind is operations.FRESH or kind is operations.VIEWS
        return self.apply(kind, self.fresh() if returns else "")

    def pieces(self) -> Statement:
        statement = self.apply(operations.PIECES, "")
        try:
            count = len(eval(statement.template.format(*statement.operands), self.world.namespace))
        except Exception:
            return statement
        if not count:
            return replace(statement, template="{0}.conj()", target=self.fresh())
        return replace(statement, target=", ".join([self.fresh() for _ in range(count)]) + ",")

    def any_statement(self) -> None:
        if self.choices.chance(12):
            self.block(self.choices.one_of(operations.CONTEXTS))
        else:
            self.add(self.statement(), keep_errors=4)

    def block(self, context: str) -> None:
        """A block of one to three statements, tried one by one in its context."""
        outer, self.statements = self.statements, []
        for _ in range(self.choices.number(1, 3)):
            statement = self.statement()
            if self.world.run(source((Block(context, (statement,)),))) is None:
                self.statements.append(statement)
        inner, self.statements = self.statements, outer
        if inner:
            self.statements.append(Block(context, tuple(inner)))

    def view(self) -> None:
        statement = self.apply(operations.VIEWS, self.fresh())
        if self.choices.chance(10):
            self.add(Block("torch.no_grad()", (statement,)))
        else:
            self.add(statement)

    # -- actions of a caller

    def any_action(self) -> None:
        action = self.choices.weighted(
            [
                (6, self.change),
                (2, self.any_statement),
                (4, self.backward),
                (1, self.gradients),
                (1, self.hook),
                (1, self.retain_grad),
            ]
        )
        action()

    def change(self) -> None:
        """In place, with or without grad mode; by `.data` only without gradients: eager's are silently wrong then."""
        kind = self.choices.weighted([(8, operations.IN_PLACE), (1, operations.METADATA)])
        statement = self.apply([template for template in kind if ".data" not in template or not self.differentiable()], "")
        hidden = self.choices.chance(25)
        self.add(Block("torch.no_grad()", (statement,)) if hidden else statement, keep_errors=30)

    def differentiable(self) -> list[str]:
        tensors = self.world.tensors()
        return [name for name, value in tensors.items() if can_start_backward(value)]

    def leaves(self) -> list[str]:
        tensors = self.world.tensors().items()
        return [name for name, value in tensors if value.requires_grad and asked(lambda t: t.is_leaf, value) is True]

    def backward(self) -> None:
        roots = self.differentiable()[::-1]
        if not roots:
            return
        chosen = tuple(dict.fromkeys(self.choices.some_of(roots, 2)))
        flags = {name: self.choices.chance(40) for name in ("expanded", "retain_graph")}
        create_graph = self.choices.chance(15)
        inputs = tuple(dict.fromkeys(self.choices.some_of(self.leaves(), 2))) if self.choices.chance(15) else ()
        self.add(Backward(chosen, **flags, create_graph=create_graph, inputs=inputs), keep_errors=30)

    def gradients(self) -> None:
        """First, and mostly second gradients."""
        roots = self.differentiable()[::-1]
        if not roots:
            return
        chosen = tuple(dict.fromkeys(self.choices.some_of(roots, 2)))
        inputs = tuple(dict.fromkeys(self.choices.some_of([*self.leaves(), *self.watchable()], 2)))
        targets = tuple(f"g{self.fresh()}" for _ in inputs)
        twice = self.choices.chance(70)
        self.add(Gradients(targets, chosen, inputs, self.choices.chance(30) or twice, twice), keep_errors=20)
        if twice and any(isinstance(self.world.namespace.get(name), Tensor) for name in targets):
            self.add(Backward(targets, retain_graph=self.choices.chance(50)), keep_errors=20)

    def watchable(self) -> list[str]:
        """Tensors for intermediate gradients."""
        return [name for name in self.differentiable() if name[0] != "r"]

    def hook(self) -> None:
        roots = self.watchable()[::-1]
        if roots:
            name = self.choices.one_of(roots)
            factor = self.choices.one_of(("None", "2"))
            self.add(Apply("", f"watch(log, '{{0}}', {{0}}, {factor})", (name,)))

    def retain_grad(self) -> None:
        roots = self.watchable()[::-1]
        if roots:
            self.add(Apply("", "{0}.retain_grad()", (self.choices.one_of(roots),)))

    def backward_of_everything(self) -> None:
        roots = [name for name in self.differentiable() if not self.world.namespace[name].is_leaf]
        if roots:
            self.add(Backward(tuple(roots)), keep_errors=30)


def is_unordered(statement: Statement, operands: Sequence[Tensor]) -> bool:
    """Whether a statement is a write whose result depends on the kernel's order of reads and writes."""
    if not isinstance(statement, Apply) or statement.template not in WRITES_FROM_OPERAND:
        return False
    return depends_on_order(*operands, "copy_" in statement.template or "=" in statement.template)


def depends_on_order(target: Tensor, source: Tensor, is_copy: bool) -> bool:
    """Whether the result of a write to `target` depends on the kernel's order of reads and writes.

    It does not if the two share no element, or are the same. For other dense tensors eager raises, unless it copies.
    """
    if storage_of(target) != storage_of(source) or not bytes_of(target) & bytes_of(source):
        return False
    if same_place(target) == same_place(source):
        return False
    return is_copy or not (torch_compat.is_dense(target) and torch_compat.is_dense(source))


def same_place(value: Tensor) -> tuple:
    return value.shape, value.stride(), value.data_ptr(), value.dtype


def bytes_of(value: Tensor) -> set[int]:
    """Where the elements of a small tensor start in memory, and each byte of them."""
    steps = [
        range(0, size * stride, stride) if stride else (0,) for size, stride in zip(value.shape, value.stride(), strict=True)
    ]
    starts = (value.data_ptr() + sum(offsets) * value.element_size() for offsets in itertools.product(*steps))
    return {start + byte for start in starts for byte in range(value.element_size())} if value.numel() else set()


def can_start_backward(value: Tensor) -> bool:
    """Not at a view made under `no_grad`, although its `requires_grad` is true."""
    return value.requires_grad and (value._base is None or asked(lambda view: view.grad_fn is not None, value) is True)
