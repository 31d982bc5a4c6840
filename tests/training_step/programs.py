"""Draws training steps: a model, optimizers, what a step does, and what happens between steps.

    program = draw(7)
    print(program)                          a script; the same number draws the same program
    compare(program, "eager")               `None`, or why it was refused; raises at the first difference from eager

All parts are lines of Python, so a program that differs can be reduced by leaving lines out (`reduced`).
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils.checkpoint

from aotgrad.backends.base import AnyBackend
from aotgrad.backends.registry import as_backend
from aotgrad.errors import CaptureError
from tests.training_step.comparing import Training, assert_trains_like_eager

LAYERS = (
    "nn.Linear(4, 4)",
    "nn.Linear(4, 4, bias=False)",
    "nn.Tanh()",
    "nn.GELU()",
    "nn.LayerNorm(4)",
    "nn.BatchNorm1d(4)",
    "nn.Dropout(0.3)",
    "nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))",
)
OPTIMIZERS: dict[str, Sequence[str]] = {
    "SGD": ("", "momentum=0.9", "momentum=0.9, nesterov=True", "momentum=0.9, dampening=0.1, weight_decay=0.01"),
    "Adam": ("", "amsgrad=True", "weight_decay=0.1, betas=(0.8, 0.99)"),
    "AdamW": ("", "amsgrad=True, maximize=True"),
    "Adagrad": ("", "lr_decay=0.1"),
    "Adadelta": ("",),
    "Adamax": ("", "weight_decay=0.1"),
    "ASGD": ("", "t0=2"),
    "NAdam": ("", "decoupled_weight_decay=True, weight_decay=0.1"),
    "RAdam": ("",),
    "RMSprop": ("", "momentum=0.9", "centered=True"),
    "Rprop": ("",),
}
SCHEDULERS = (
    "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)",
    "torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)",
    "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (k + 1))",
)
PENALTIES = (
    "loss = loss + 0.1 * sum(p.square().sum() for p in model.parameters())",
    "loss = loss + 0.1 * torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].square().sum()",
    "loss = loss + model(x[:2]).abs().mean()",
)
BACKWARDS = (
    ("loss.backward()",),
    ("(loss / 2).backward(retain_graph=True)", "(loss / 2).backward()"),
    ("for part in x.chunk(2): nn.functional.mse_loss(model(part), part.cos()).backward()", "loss.backward()"),
    ("loss.backward(inputs=[p for p in model.parameters() if p.requires_grad])",),
)
AFTER_BACKWARD = (
    "norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
    "nn.utils.clip_grad_value_(model.parameters(), 0.1)",
    "[p.grad.mul_(0.5) for p in model.parameters() if p.grad is not None]",
    "norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])",
)
BETWEEN = (
    "optimizer.param_groups[0]['lr'] *= 0.5",
    "optimizer.param_groups[0]['weight_decay'] = 0.1",
    "first.requires_grad_(not first.requires_grad)",
    "model.train(not model.training)",
    "optimizer.zero_grad()",
    "model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})",
    "optimizer.load_state_dict(optimizer.state_dict())",
)
NEW_GROUP = "optimizer.add_param_group({'params': [extra], 'lr': 0.01}) if len(optimizer.param_groups) < 2 else None"
"""Between steps, unless a scheduler knows the groups."""

MODELS = ("model(x)", "model(x)", "torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)")
MEMORY: Sequence[dict[str, Any]] = (
    *({}, {}, {"memory_budget": 0.0}, {"memory_budget": 0.4}, {"offload": True}),
    {"memory_budget": 0.6, "memory_budget_of": "peak"},
)
"""Options of the compilation."""

RESULTS = ("loss", "(loss, norm)", "{'loss': loss, 'rows': len(x)}", "loss.detach(), model(x)", "None")
STEPS = 5


@dataclass(frozen=True)
class StepProgram:
    """Lines of a setup, which also defines `state`, of the body of `step(x, update)`, and one after each step."""

    setup: tuple[str, ...]
    body: tuple[str, ...]
    between: tuple[str, ...]
    rows: tuple[int, ...]
    keep_gradients: bool
    memory: dict[str, Any]
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        """The program, with the call of the step."""
        lines = [*self.setup, "", "def step(x, update):", *(f"    {line}" for line in self.body), ""]
        steps = zip(self.rows, self.between, strict=True)
        lines += [f"step(x[:{rows}], {k % 2 == 1}); {line}" for k, (rows, line) in enumerate(steps)]
        return "\n".join([*lines, f"# keep_gradients={self.keep_gradients}, options={self.memory}"])

    def training(self) -> Training:
        names: dict[str, Any] = {"torch": torch, "nn": torch.nn}
        exec("\n".join([*self.setup, "def step(x, update):", *(f"    {line}" for line in self.body)]), names)
        return Training(names["step"], names["state"], between=lambda k: exec(self.between[k], names))

    def batches(self) -> list[tuple[Any, ...]]:
        generator = torch.Generator().manual_seed(1)
        inputs = [torch.randn(rows, 4, generator=generator).to(self.dtype) for rows in self.rows]
        return [(x, k % 2 == 1) for k, x in enumerate(inputs)]


def for_fused_ops(program: StepProgram) -> StepProgram:
    """The program in double precision, for ops that round in another way: of a gradient that is 0 but for rounding, an
    optimizer makes an update, unless it is less than its `eps`. Rprop takes the sign.
    """
    setup = (re.sub(r"^(model = .*)", r"\1.double()", line).replace("optim.Rprop", "optim.SGD") for line in program.setup)
    return replace(program, setup=tuple(setup), dtype=torch.float64)


def draw(number: int) -> StepProgram:
    """The program with this number."""
    choose = random.Random(number)
    scaled, averaged, scheduled = (choose.random() < share for share in (0.15, 0.15, 0.4))
    state = ["model", "optimizer", *["scaler"] * scaled, *["averaged"] * averaged, "extra"]
    setup = [f"model = nn.Sequential({', '.join([*layers_of(choose), 'nn.Linear(4, 4)'])})"]
    setup += ["first, extra = next(model.parameters()), nn.Parameter(torch.ones(3))", optimizer_of(choose)]
    setup += ["scaler = torch.amp.GradScaler('cpu', init_scale=8.0)"] * scaled
    setup += ["averaged = torch.optim.swa_utils.AveragedModel(model)"] * averaged
    setup += [f"scheduler = {choose.choice(SCHEDULERS)}"] * scheduled
    body = [*body_of(choose, scaled), *["averaged.update_parameters(model)"] * averaged, f"return {choose.choice(RESULTS)}"]
    changes = BETWEEN if scheduled else (*BETWEEN, NEW_GROUP)
    between = [choose.choice(changes) if choose.random() < 0.4 else "pass" for _ in range(STEPS)]
    between = [f"{line}; scheduler.step()" if scheduled else line for line in between]
    rows = [choose.choice((8, 8, 8, 6)) for _ in range(STEPS)]
    setup.append(f"state = [{', '.join(state)}]")
    keeps, memory = choose.random() < 0.7, choose.choice(MEMORY)
    return StepProgram(tuple(setup), tuple(body), tuple(between), tuple(rows), keeps, memory)


def layers_of(choose: random.Random) -> list[str]:
    """Layers, sometimes one after another of a kind."""
    layers = [choose.choice(LAYERS) for _ in range(choose.randrange(1, 4))]
    return layers * choose.choice((1, 1, 3))


def optimizer_of(choose: random.Random) -> str:
    name = choose.choice(list(OPTIMIZERS))
    parameters = choose.choice(("model.parameters()", "[{'params': [p], 'lr': 0.01} for p in model.parameters()]"))
    settings = ["lr=0.05", choose.choice(OPTIMIZERS[name]), choose.choice(("", "foreach=True", "foreach=False"))]
    return f"optimizer = torch.optim.{name}({', '.join([parameters, *filter(None, settings)])})"


def body_of(choose: random.Random, scaled: bool) -> Iterator[str]:
    """The lines of a step before it returns."""
    yield "norm = torch.zeros(())"
    clears_first = choose.random() < 0.7
    clear = choose.choice(("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)", "model.zero_grad()"))
    if clears_first:
        yield clear
    yield "x = x.detach().requires_grad_()"
    cast = "with torch.autocast('cpu', torch.bfloat16): " if choose.random() < 0.1 else ""
    yield f"{cast}loss = nn.functional.mse_loss({choose.choice(MODELS)}, x.detach().sin())"
    if choose.random() < 0.3:
        yield choose.choice(PENALTIES)
    if scaled:
        yield "scaler.scale(loss).backward()"
        if choose.random() < 0.5:
            yield from ("scaler.unscale_(optimizer)", choose.choice(AFTER_BACKWARD))
        yield from ("scaler.step(optimizer)", "scaler.update()")
    else:
        yield from choose.choice(BACKWARDS)
        if choose.random() < 0.4:
            yield choose.choice(AFTER_BACKWARD)
        yield "if update: optimizer.step()" if choose.random() < 0.3 else "optimizer.step()"
    if not clears_first:
        yield f"if update: {clear}"


def compare(program: StepProgram, backend: AnyBackend) -> str | None:
    """Why a program was refused, or `None`.

    Raises:
        AssertionError: a result or the state differs from eager's.
        Exception: of any other kind, where eager raises none.
    """
    if as_backend(backend).fuses:
        program = for_fused_ops(program)
    options = {**program.memory, "inductor": {"fallback_random": True}}  # eager's random numbers
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a scheduler may go on before the optimizer does
            assert_trains_like_eager(
                program.training, program.batches(), backend, keep_gradients=program.keep_gradients, options=options
            )
    except CaptureError as error:
        return str(error).splitlines()[0]
    return None


def fails(program: StepProgram, backend: AnyBackend) -> bool:
    """Whether eager runs a program, and `compare` raises."""
    try:
        training = program.training()
        for k, batch in enumerate(program.batches()):
            training.step(*batch)
            training.between(k)
    except Exception:
        return False
    try:
        compare(program, backend)
    except Exception:
        return True
    return False


def reduced(program: StepProgram, fails: Callable[[StepProgram], bool]) -> StepProgram:
    """The program without the lines and steps that a failure does not need."""
    for candidate in smaller(program):
        if fails(candidate):
            return reduced(candidate, fails)
    return program


def smaller(program: StepProgram) -> Iterator[StepProgram]:
    """Programs with a line or step less."""
    if len(program.rows) > 1:
        yield replace(program, rows=program.rows[:-1], between=program.between[:-1])
    for k, line in enumerate(program.between):
        if line != "pass":
            yield replace(program, between=(*program.between[:k], "pass", *program.between[k + 1 :]))
    for k in range(len(program.body)):
        yield replace(program, body=(*program.body[:k], *program.body[k + 1 :]))
