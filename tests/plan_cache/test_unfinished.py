"""What is left of a compilation, and who does it."""

from __future__ import annotations

import pytest

from aotgrad.plan_cache.unfinished import finish_later, leaving_unfinished


def test_nothing_is_left_where_nobody_allows_it():
    done = []
    finish_later(lambda: done.append(1))
    with leaving_unfinished(False) as work:
        finish_later(lambda: done.append(2))
    assert done == [1, 2] and not work


def test_the_rest_is_done_once_and_in_order():
    done = []
    with leaving_unfinished() as work:
        finish_later(lambda: done.append(1))
        finish_later(lambda: done.append(2))
    assert work and done == []
    work.finish()
    work.finish()
    assert done == [1, 2] and not work


def test_the_innermost_block_decides():
    done = []
    with leaving_unfinished() as outer:
        with leaving_unfinished() as inner:
            finish_later(lambda: done.append("inner"))
        with leaving_unfinished(False):
            finish_later(lambda: done.append("now"))
        finish_later(lambda: done.append("outer"))
    assert done == ["now"]
    outer.finish()
    inner.finish()
    assert done == ["now", "outer", "inner"]


def test_what_fails_is_raised_and_ends_it():
    done = []
    with leaving_unfinished() as work:
        finish_later(lambda: 1 // 0)
        finish_later(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        work.finish()
    assert done == [] and not work
