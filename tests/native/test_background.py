"""The build of the C++ functions by another process, after the first compilation."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import aotgrad
from aotgrad import native
from aotgrad.cache.store import Store
from aotgrad.inspect.command_line import main
from aotgrad.native import background, build
from tests.native.built import FOLDER

LIMIT_S = 60.0


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty cache in a process that may build."""
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("AOTGRAD_NATIVE", raising=False)
    monkeypatch.setattr(background, "DELAY_S", 0)
    forget()
    yield tmp_path / "cache" / "native"
    forget()


def forget() -> None:
    for remembered in (native.library, native.look_again, background.started):
        remembered.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch, library) -> Path:
    """A compiler that takes no time: it copies what another one has built, and notes that it ran."""
    content = Store(FOLDER / "native").read(build.key())
    assert content is not None
    (tmp_path / "library.so").write_bytes(content)
    return install(monkeypatch, tmp_path, f'while [ "$1" != -o ]; do shift; done; cp {tmp_path}/library.so "$2"')


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\necho ran >> {folder}/log\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


def runs(compiler: Path) -> int:
    log = compiler.with_name("log")
    return len(log.read_text().splitlines()) if log.exists() else 0


def compile_something() -> None:
    compiled = aotgrad.aot_function(lambda x: (x * 2).sin(), aotgrad.nop)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0).sin())


def wait_for(file: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert file.exists()


def test_a_compilation_starts_the_build_and_a_later_one_uses_it(folder, compiler):
    compile_something()
    wait_for(folder / build.key())
    compile_something()
    assert native.library() is not None
    compile_something()
    assert runs(compiler) == 1


@pytest.mark.parametrize("setting", ["0", "built"])
def test_the_environment_forbids_it(folder, compiler, setting, monkeypatch):
    monkeypatch.setenv("AOTGRAD_NATIVE", setting)
    compile_something()
    assert background.started.cache_info().misses == 0 and not folder.exists()


def test_the_process_may_end_before_the_build(folder, compiler):
    program = "import torch, aotgrad; aotgrad.aot_function(torch.sin, aotgrad.nop)(torch.ones(2))"
    finished = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == finished.stderr == ""
    wait_for(folder / build.key())


def test_one_of_several_processes_builds(folder, compiler):
    program = "from aotgrad.native.background import build_here; build_here()"
    install_slow = compiler.read_text().replace("while", "sleep 3; while")
    compiler.write_text(install_slow)
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert runs(compiler) == 1 and (folder / build.key()).exists()


def test_a_build_that_fails_is_not_tried_again(folder, monkeypatch, tmp_path, capsys):
    compiler = install(monkeypatch, tmp_path, "echo no such header >&2; exit 1")
    compile_something()
    wait_for(folder / background.key_of_failure())
    forget()
    compile_something()
    assert runs(compiler) == 1 and background.started() is None
    assert main(["native", "info"]) == 0
    assert "in the background, the compiler fails" in (said := capsys.readouterr().out) and "no such header" in said


def test_nothing_but_a_line_in_the_log_tells_of_an_obstacle(folder, monkeypatch, caplog, recwarn):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.DEBUG, "aotgrad.native"):
        compile_something()
        compile_something()
    (record,) = [each for each in caplog.records if each.name == "aotgrad.native"]
    assert record.getMessage() == "the C++ functions are not built: there is no compiler 'no-such-compiler'"
    assert not list(recwarn) and not folder.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.setattr(sys, "frozen", True, raising=False), "is no Python interpreter"),
        (lambda m: m.setattr(sys, "executable", "/usr/bin/blender"), "is no Python interpreter"),
        (lambda m: m.setattr(build, "IS_SUPPORTED", False), "does not tell who owns a folder"),
        (lambda m: m.setattr(os, "access", lambda path, mode: mode != os.W_OK), "cannot be written"),
    ],
)
def test_obstacles(folder, compiler, change, reason, monkeypatch):
    assert background.obstacle() is None
    change(monkeypatch)
    assert reason in background.obstacle()


def test_a_file_that_is_no_library_is_read_twice_and_no_more(folder, compiler, caplog):
    build.native_store().write(build.key(), b"no library")
    for _ in range(3):
        compile_something()
    assert caplog.text.count("are not used, Python functions replace them") == 2
