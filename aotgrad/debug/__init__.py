"""Find out where a backend goes wrong.

    aotgrad.debug.minify(model, (x,), backend="mine", path="repro.py")    a small script that fails as the backend does

`reduction` makes sets smaller (no torch), `programs` takes graphs apart, `check` runs a graph through a backend and beside
eager, `isolation` does it in another process, `script` writes it down, `minify` puts them together.
"""

from aotgrad.debug.check import Failure, check, failure_of
from aotgrad.debug.minify import Repro, minifier, minify

__all__ = ["Failure", "Repro", "check", "failure_of", "minifier", "minify"]
