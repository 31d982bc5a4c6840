"""How a sequence of autograd nodes is cut into chunks: the algorithms on plain graphs."""

from __future__ import annotations

from collections.abc import Mapping

from aotgrad.joint.chunks import chunks_of_equal_length, chunks_of_equal_weight


def parts(chunks: Mapping[str, int]) -> list[str]:
    return ["".join(sorted(item for item in chunks if chunks[item] == k)) for k in range(max(chunks.values()) + 1)]


def chain(items: str) -> dict[str, list[str]]:
    """Each item passes gradients to the next one."""
    return {item: list(items[k + 1 : k + 2]) for k, item in enumerate(items)}


def test_chunks_have_about_the_same_length():
    assert parts(chunks_of_equal_length("abcdefgh", 3)) == ["abc", "def", "gh"]


def weighed(successors: Mapping[str, list[str]], count: int, **weights: int) -> list[str]:
    order = list(successors)
    return parts(chunks_of_equal_weight(order, successors, {item: weights.get(item, 0) for item in order}, count))


def test_a_chunk_ends_where_it_has_its_weight():
    assert weighed(chain("abcdef"), 8, b=5, d=5) == ["ab", "cdef"]
    assert weighed(chain("abcdef"), 1, b=5, d=5) == ["abcdef"]
    assert weighed(chain("abc"), 8) == ["abc"]


def test_the_heaviest_chunk_is_as_light_as_can_be():
    assert weighed(chain("abcdef"), 3, a=1, b=1, c=1, d=1, e=1, f=1) == ["ab", "cd", "ef"]
    assert weighed(chain("abcdef"), 2, a=9, b=1, c=1, d=1, e=1, f=1) == ["abc", "def"]


def test_small_weights_get_no_chunks_of_their_own():
    assert weighed(chain("abcd"), 8, a=1, b=8, c=1, d=8) == ["ab", "cd"]


def test_what_only_hands_on_a_gradient_goes_with_what_made_it():
    transposes = {"a": ["s", "b"], "s": ["t"], "t": [], "b": ["u", "c"], "u": [], "c": ["v"], "v": []}
    assert weighed(transposes, 8, a=1, t=8, b=1, u=8, c=1, v=8) == ["ast", "bu", "cv"]
