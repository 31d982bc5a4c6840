"""`aotgrad.explain`: what would be compiled for a call, or was, as one report.

In: a function or module, and the arguments of a call. Out: an `Explanation`. Nothing of the function runs.

    print(aotgrad.explain(model)(x))
    print(aotgrad.explain(model, dynamo=True)(x))       each of Dynamo's graphs, and what broke them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aotgrad import torch_compat
from aotgrad.backends import registry
from aotgrad.backends.base import WrappedBackend
from aotgrad.inspect.dynamo import DynamoExplainer
from aotgrad.inspect.explanation import Explanation, explanation_of
from aotgrad.ir import Compiled, Partition
from aotgrad.options import Options
from aotgrad.plan_cache.binding import BoundFunction, bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.compiler import make_compiler
from aotgrad.telemetry.graph_names import qualified_name


@dataclass(frozen=True)
class Explainer:
    """Call it as the function is called."""

    calls: BoundFunction

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        """What a call with these arguments runs.

        Raises:
            CaptureError: and whatever else a call raises that cannot be compiled.
        """
        plan = self.calls.plan_for(*args, **kwargs)
        return explanation_of(plan, self.calls.cache, self.calls.named_tensors(args, kwargs))


def explain(
    fn: Callable[..., Any], *, backend: str = "eager", options: Mapping[str, Any] | None = None, dynamo: bool = False
) -> Explainer | DynamoExplainer:
    """Say what is compiled for a call, and why: `explain(fn)(*args)`.

    Args:
        fn: a function of tensors or a module, which is traced as it stands: where `torch.compile` was there before, what it
            was given, without Dynamo's own graphs. Or what `aot_function` or `aot_module` returned, whose own plan for the
            call is explained, and made if there is none.
        backend: the name of a registered backend, which traces and partitions but does not compile. Without a meaning
            for what is compiled already, as are the options.
        options: see `aotgrad.Options`.
        dynamo: whether to explain each graph that Dynamo makes of `fn`, and what broke them. The function runs once for
            that, in eager, on copies of its tensors, and Dynamo forgets what it has compiled before.

    Returns:
        A function of the arguments of `fn` that returns an `Explanation`. Print it: what happens to each input, what each
        output is, the graphs, each value saved for the backward with its bytes, its line and the reason, what runs
        again and what that costs, what one call does, and the plans and backward graphs so far. `to_json()` gives the
        same to a program; sizes are in bytes. With `dynamo`, a `DynamoExplanation` of as many of them.

    Raises:
        BackendError, OptionError: for a backend or an option that there is not.

    Example:
        >>> import torch
        >>> x = torch.ones(2, 3, requires_grad=True)
        >>> report = explain(lambda x: x.sin().sum())(x)
        >>> [(row.name, row.bytes) for row in report.saved]
        [('x', 24)]
    """
    checked = Options.from_mapping(options)
    compiler = make_compiler(Uncompiled(registry.get(backend)), checked)
    if dynamo:
        return DynamoExplainer(fn, compiler)
    calls = getattr(fn, "calls", None)
    if calls is None:
        original = torch_compat.without_dynamo(fn)
        calls = bind(fn, PlanCache(compiler, qualified_name(original)))
    return Explainer(calls)


@dataclass(frozen=True)
class Uncompiled(WrappedBackend):
    """A backend that shapes the graphs as another one does, and compiles none of them."""

    def compile(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        def refuse(*args: Any) -> Any:
            raise AssertionError("a plan that was made to be looked at does not run")

        return Compiled(self.name, refuse, None if partition.backward is None else lambda half: refuse)
