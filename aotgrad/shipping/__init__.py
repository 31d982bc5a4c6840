"""Compiled functions in a file, for another process: nothing is traced or partitioned there. See `docs/shipping.md`.

`files` has the two public functions, `save` and `load`. `archive` is the file. `record` turns the plans of a function into
entries of the disk cache, with the backend's code (`code`) and the tensors that it has closed over (`closed_over`), and
`revive` turns them into plans. `loaded` is the plan cache of a loaded function. `key_form` is the key of a call in a form
that processes share, `source_checks` reads source from a file before it runs, and `fact_checks` facts about graphs.
"""

from __future__ import annotations

from aotgrad.shipping.files import load, save

__all__ = ["load", "save"]
