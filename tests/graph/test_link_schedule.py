"""The simulated schedule of computations and collectives."""

from __future__ import annotations

import itertools

from aotgrad.graph.link_schedule import Computation, Link, Start, Wait, exposed, simulate_link, table

LINK = Link(bandwidth=1e9, latency=10e-6)
AT_ONCE = [Start("a", 40_000), Wait("a"), Computation("mm", 60e-6), Start("b", 10_000), Wait("b"), Computation("add", 5e-6)]
LATE = [Start("a", 40_000), Computation("mm", 60e-6), Wait("a"), Start("b", 10_000), Computation("add", 5e-6), Wait("b")]

TABLE = """\
queue    op                            start        end
link     a                               0.0       50.0
compute  mm                              0.0       60.0
exposed  a                              60.0       60.0
link     b                              60.0       80.0
compute  add                            60.0       65.0
exposed  b                              65.0       80.0
exposed: 15.0
"""


def test_the_table():
    assert table(simulate_link(LATE, LINK)) == TABLE


def test_late_waits_expose_less():
    assert exposed(simulate_link(AT_ONCE, LINK)) > 4 * exposed(simulate_link(LATE, LINK))


def test_messages_share_the_link_one_after_the_other():
    links = [each for each in simulate_link([Start(str(k), 1000) for k in range(5)], LINK) if each.queue == "link"]
    assert all(earlier.end == later.start for earlier, later in itertools.pairwise(links))


def test_one_message_costs_less_than_two():
    two = simulate_link([Start("a", 1000), Start("b", 1000), Wait("a"), Wait("b")], LINK)
    one = simulate_link([Start("ab", 2000), Wait("ab")], LINK)
    assert abs(exposed(two) - exposed(one) - LINK.latency) < 1e-9
