"""`aotgrad.explain`: a report on what is compiled for a call.

In: a function or module, and the arguments of a call. Out: an `Explanation`. The function is traced, but does not run.

    print(aotgrad.explain(model)(x))
    print(aotgrad.explain(model, dynamo=True)(x))       each of Dynamo's graphs, and the graph breaks
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aotgrad import torch_compat
from aotgrad.backends import registry
from aotgrad.backends.base import AnyBackend, WrappedBackend
from aotgrad.inspect.dynamo import DynamoExplainer
from aotgrad.inspect.explanation import Explanation
from aotgrad.inspect.rows import explanation_of
from aotgrad.ir import Compiled, Partition
from aotgrad.options import Options
from aotgrad.plan_cache.binding import BoundFunction, bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.compiler import make_compiler
from aotgrad.telemetry.graph_names import qualified_name


@dataclass(frozen=True)
class Explainer:
    """Takes the arguments of the function."""

    bound: BoundFunction

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        """What a call with these arguments runs.

        Raises:
            CaptureError: or any other error of a call that cannot be compiled.
        """
        plan = self.bound.plan_for(*args, **kwargs)
        return explanation_of(plan, self.bound.cache, self.bound.named_tensors(args, kwargs))


def explain(
    fn: Callable[..., Any], *, backend: AnyBackend = "eager", options: Mapping[str, Any] | None = None, dynamo: bool = False
) -> Explainer | DynamoExplainer:
    """Explain what is compiled for a call, and why: `explain(fn)(*args)`.

    Args:
        fn: a function of tensors, or a module; it is traced as it is. For a result of `torch.compile`, the original function
            is traced, without Dynamo. For a result of `aot_function` or `aot_module`, the explanation is of its plan for
            the call, which is compiled if there is none.
        backend: a registered name, or a backend. It shapes the graphs but compiles nothing. Ignored, like `options`, if `fn`
            is compiled already.
        options: see `aotgrad.Options`.
        dynamo: explain each graph that Dynamo makes of `fn`, and the graph breaks. The function runs once for that, in
            eager, on copies of its tensors. Resets Dynamo.

    Returns:
        A function of the arguments of `fn` that returns an `Explanation`. Print it to see what happens to each input, what
        each output is, the graphs, the ops that run in eager
        between them, each saved value with its bytes, line and reason, the recomputed ops and their cost, the
        steps of one call, and the plans and backward graphs so far. `to_json()` has the same content, with sizes in bytes.
        With `dynamo`, the result is a `DynamoExplanation`.

    Raises:
        BackendError, OptionError: the backend or an option does not exist.

    Examples:
        >>> import torch
        >>> x = torch.ones(2, 3, requires_grad=True)
        >>> report = explain(lambda x: x.sin().sum())(x)
        >>> [(row.name, row.bytes) for row in report.saved]
        [('x', 24)]
    """
    checked = Options.from_mapping(options)
    compiler = make_compiler(Uncompiled(registry.as_backend(backend)), checked)
    if dynamo:
        return DynamoExplainer(fn, compiler)
    bound = getattr(fn, "calls", None)
    if bound is None:
        original = torch_compat.uncompiled_function(fn)
        bound = bind(fn, PlanCache(compiler, qualified_name(original)))
    return Explainer(bound)


@dataclass(frozen=True)
class Uncompiled(WrappedBackend):
    """A backend that shapes graphs like another one, but compiles none."""

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        def refuse(*args: Any) -> Any:
            raise AssertionError("a plan that is only explained does not run")

        return Compiled(self.name, refuse, None if partition.backward is None else lambda half: refuse)
