"""Private files with checksums and a size limit, which are never partly written."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest

import aotgrad
from aotgrad.cache.store import MAGIC, STALE_SECONDS, Store


@pytest.fixture
def store(folder) -> Store:
    return Store(folder)


def names(store: Store) -> list[str]:
    return [file.name for file in store.files()]


def test_what_is_written_is_read(store):
    assert store.read("a") is None
    store.write("a", b"one")
    store.write("a", b"two")
    assert store.read("a") == b"two" and names(store) == ["a"]


def test_only_the_owner_can_use_the_folder_and_its_files(store):
    store.write("a", b"one")
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert (store.folder / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("length", [0, 1, len(MAGIC), len(MAGIC) + 16, len(MAGIC) + 32, len(MAGIC) + 34])
def test_a_truncated_file_is_nothing(store, counted, length):
    store.write("a", b"content")
    path = store.folder / "a"
    path.write_bytes(path.read_bytes()[:length])
    assert store.read("a") is None and counted() == {"cache_failures": 1}


def test_a_flipped_bit_anywhere_is_noticed(store):
    store.write("a", b"content")
    path = store.folder / "a"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(bytes([*whole[:position], whole[position] ^ 1, *whole[position + 1 :]]))
        assert store.read("a") is None
    path.write_bytes(whole)
    assert store.read("a") == b"content"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_use_is_not_used_with_one_warning(store, mode):
    store.write("a", b"one")
    store.folder.chmod(mode)
    with pytest.warns(UserWarning, match="others can use it") as warned:
        assert store.read("a") is None
        store.write("b", b"two")
    assert len(warned) == 1 and sorted(os.listdir(store.folder)) == ["a"]


def test_a_file_that_others_can_use_is_not_read(store, counted):
    store.write("a", b"one")
    (store.folder / "a").chmod(0o644)
    assert store.read("a") is None and counted() == {"cache_failures": 1}


def test_a_folder_of_somebody_else_is_not_used(store, monkeypatch):
    store.write("a", b"one")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.warns(UserWarning, match="another user"):
        assert store.read("a") is None


def test_a_folder_that_is_a_link_is_not_used(store, tmp_path):
    other = Store(tmp_path / "elsewhere")
    other.write("a", b"one")
    store.folder.parent.mkdir(parents=True)
    store.folder.symlink_to(other.folder)
    with pytest.warns(UserWarning, match="not used"):
        assert store.read("a") is None


def test_a_file_that_is_a_link_or_a_pipe_is_not_read(store, tmp_path):
    store.write("a", b"one")
    (store.folder / "link").symlink_to(store.folder / "a")
    os.mkfifo(store.folder / "pipe", 0o600)
    assert store.read("link") is None and store.read("pipe") is None


def test_a_file_in_the_place_of_the_folder(store):
    store.folder.parent.mkdir(parents=True)
    store.folder.write_text("")
    with pytest.warns(UserWarning, match="not used"):
        store.write("a", b"one")


def test_a_folder_below_a_file_cannot_be_made(tmp_path, counted):
    (tmp_path / "file").write_text("")
    Store(tmp_path / "file" / "plans").write("a", b"one")
    assert counted() == {"cache_failures": 1}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_or_a_read_only_one_leaves_nothing_behind(store, monkeypatch, counted, error):
    store.write("a", b"one")
    real_open = os.open

    def failing(path, flags, *args, **kwargs):
        if flags & os.O_CREAT:
            raise OSError(error, os.strerror(error))
        return real_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", failing)
    store.write("a", b"two")
    assert counted() == {"cache_failures": 1} and store.read("a") == b"one" and names(store) == ["a"]


def test_a_disk_that_fills_up_while_a_file_is_written(store, monkeypatch):
    store.write("a", b"one")
    monkeypatch.setattr(os, "rename", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    store.write("a", b"two")
    assert store.read("a") == b"one" and names(store) == ["a"]


def test_what_was_used_longest_ago_goes_first(folder):
    store = Store(folder, limit_bytes=3 * (1000 + len(MAGIC) + 32))
    for age, name in enumerate("abc"):
        store.write(name, bytes(1000))
        os.utime(folder / name, (0, time.time() - 100 + age))
    assert store.read("a") is not None
    store.write("d", bytes(1000))
    assert sorted(names(store)) == ["a", "c", "d"]


def test_one_that_is_larger_than_everything_may_be_does_not_stay(folder):
    store = Store(folder, limit_bytes=100)
    store.write("a", bytes(1000))
    assert names(store) == []


def test_what_a_writer_left_unfinished_goes_after_an_hour(store):
    store.write("a", b"one")
    for name, age in (("b.1.x.tmp", STALE_SECONDS + 1), ("c.1.x.tmp", 1)):
        (store.folder / name).write_bytes(b"")
        os.utime(store.folder / name, (0, time.time() - age))
    store.write("d", b"two")
    assert sorted(names(store)) == ["a", "c.1.x.tmp", "d"]


def test_many_writers_and_readers_at_once(store):
    contents = [bytes([k]) * 100_000 for k in range(4)]
    wrong = []

    def work(content: bytes) -> None:
        for _ in range(50):
            store.write("a", content)
            found = store.read("a")
            if found not in contents:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and names(store) == ["a"]


def test_clear(store):
    assert store.clear() == 0
    for name in "ab":
        store.write(name, b"one")
    assert store.clear() == 2 and names(store) == []


def test_the_failures_are_counted(store):
    before = aotgrad.counters["cache_failures"]
    store.write("a/b", b"one")
    assert aotgrad.counters["cache_failures"] == before + 1
