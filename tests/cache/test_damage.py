"""Damaged files: the function is recompiled and computes the right results."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from aotgrad.cache.store import MAGIC, Store, checksum

from .conftest import compiled
from .programs import outcome


def whole(path: Path, content: bytes) -> None:
    """Write a file with the right checksum."""
    path.write_bytes(MAGIC + checksum(path.name, content) + content)


def changed_data(change):
    """A file with changed content and the right checksum for it."""

    def damage(path: Path, content: bytes) -> None:
        data = json.loads(content[len(MAGIC) + 32 :])
        change(data)
        whole(path, json.dumps(data).encode())

    return damage


def raw(change):
    """A file with changed content and its old checksum."""
    return lambda path, content: path.write_bytes(change(content))


def unknown_type(data):
    data["entry"][0] = "SomeType"


def missing_field(data):
    data["entry"].pop()


def foreign_operator(data):
    text = json.dumps(data["entry"]).replace("aten::", "mylib::")
    data["entry"] = json.loads(text)


def no_graph(data):
    data["entry"] = json.loads(json.dumps(data["entry"]).replace('\\"nodes\\"', '\\"knots\\"'))


def no_storages(data):
    data["storages"] = []


DAMAGES = {
    "empty": raw(lambda content: b""),
    "half of it": raw(lambda content: content[: len(content) // 2]),
    "without its end": raw(lambda content: content[:-1]),
    "with a longer end": raw(lambda content: content + b"x"),
    "another format": raw(lambda content: content.replace(b"cache 1", b"cache 0")),
    "a flipped bit": raw(lambda content: content[:500] + bytes([content[500] ^ 4]) + content[501:]),
    "zeros": raw(lambda content: bytes(len(content))),
    "not JSON": lambda path, content: whole(path, b"\x00\xff"),
    "other JSON": lambda path, content: whole(path, b"[]"),
    "a number": lambda path, content: whole(path, b'{"entry": 3, "storages": []}'),
    "an unknown type": changed_data(unknown_type),
    "a missing field": changed_data(missing_field),
    "a foreign operator": changed_data(foreign_operator),
    "no nodes": changed_data(no_graph),
    "no storages": changed_data(no_storages),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_compiled_again_and_mended(name, folder, counted):
    expected = outcome("mlp", compiled)
    (path,) = folder.iterdir()
    DAMAGES[name](path, path.read_bytes())
    counted()
    for _ in range(2):
        for found, wanted in zip(outcome("mlp", compiled), expected, strict=True):
            assert torch.equal(found, wanted)
    assert counted() == {"cache_failures": 1, "cache_misses": 1, "compilations": 1, "cache_hits": 1}


def test_two_entries_that_were_exchanged(folder, counted):
    expected = outcome("dropout", compiled), outcome("mlp", compiled)
    paths = list(folder.iterdir())
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    counted()
    for name, wanted in zip(("dropout", "mlp"), expected, strict=True):
        for found, value in zip(outcome(name, compiled), wanted, strict=True):
            assert torch.equal(found, value)
    assert counted() == {"cache_failures": 2, "cache_misses": 2, "compilations": 2}


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_that_others_can_use(folder, counted, mode):
    expected = outcome("mlp", compiled)
    folder.chmod(mode)
    counted()
    with pytest.warns(UserWarning, match="others can use it"):
        found = outcome("mlp", compiled)
    assert all(map(torch.equal, found, expected))
    assert counted() == {"cache_failures": 2, "cache_misses": 1, "compilations": 1}


def test_a_disk_without_space(counted, monkeypatch):
    expected = outcome("mlp", lambda function: function)
    monkeypatch.setattr(os, "rename", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(28, "no space left")))
    assert all(map(torch.equal, outcome("mlp", compiled), expected))
    assert counted() == {"cache_failures": 1, "cache_misses": 1, "compilations": 1}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_damaged_artefact_of_inductor_is_made_again(folder, counted):
    expected = outcome("mlp", lambda function: compiled(function, "aotgrad"))
    files = Store(folder).files()
    for file in files:
        content = (folder / file.name).read_bytes()
        is_entry = content[len(MAGIC) + 32 :].startswith(b'{"entry"')
        if not is_entry:
            whole(folder / file.name, b"no pickle")
    counted()
    found = outcome("mlp", lambda function: compiled(function, "aotgrad"))
    assert all(map(torch.equal, found, expected))
    assert counted() == {"cache_hits": 1, "cache_failures": 2}
