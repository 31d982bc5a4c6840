"""Tools that find where a backend fails.

    aotgrad.debug.minify(model, (x,), backend="mine", path="repro.py")    a small script that fails as the backend does

`reduction` minimizes sets (no torch), `programs` splits graphs, `shrink` makes failing ones smaller, `check` compares a
backend with eager on a graph, `isolation` runs that in another process, `script` writes a repro, `minify` combines them.
"""

from aotgrad.debug.check import BackendFailure, check_backend, failure_of
from aotgrad.debug.minify import Repro, minifier, minify

__all__ = ["BackendFailure", "Repro", "check_backend", "failure_of", "minifier", "minify"]
