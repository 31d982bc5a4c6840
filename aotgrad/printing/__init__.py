"""Stage -> text: for logs, golden files and error notes. Equal stages give equal text: no addresses, no absolute paths.

`text` writes the result of any stage, `segments_text` and `variant_text` the parts of a backward, `type_text` the type of
one value. They are in `stages` and `types`; `graphs` prints graphs.
"""

from __future__ import annotations

from aotgrad.printing.graphs import graph_text
from aotgrad.printing.stages import segments_text, text, variant_text
from aotgrad.printing.types import type_text

__all__ = ["graph_text", "segments_text", "text", "type_text", "variant_text"]
