"""What compiled autograd gets of a segment."""

from __future__ import annotations

from aotgrad.runtime.inlined import nested_text


def test_a_layout_as_text():
    layouts = (((2, 3), (3, 1)), ((), ()))
    assert eval(nested_text(layouts)) == layouts and eval(nested_text(())) == ()
