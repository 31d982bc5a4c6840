"""Building, storing and loading the C++ functions; if the file is damaged, Python functions replace them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import aotgrad
from aotgrad import native
from aotgrad.cache import store as stores
from aotgrad.errors import NativeError
from aotgrad.inspect.command_line import main
from aotgrad.native import build
from tests.native.built import FOLDER

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty cache, of which this process knows nothing."""
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(stores, "_warned", set())
    native.library.cache_clear()
    yield tmp_path / "cache" / "native"
    native.library.cache_clear()


@pytest.fixture
def content(library) -> bytes:
    """A library that works, as it was built."""
    found = stores.Store(FOLDER / "native").read(build.key())
    assert found is not None
    return found


def keep(content: bytes) -> Path:
    store = build.native_store()
    store.write(build.key(), content)
    return store.folder / build.key()


def works() -> bool:
    """Whether what is compiled now works, with or without C++."""
    x = torch.ones(3, requires_grad=True)
    compiled = aotgrad.aot_function(lambda x: (x * 2).sin(), aotgrad.nop)
    for _ in range(2):
        compiled(x).sum().backward()
    return torch.allclose(x.grad, 4 * (2 * x).cos()) and [plan.hits for plan in compiled.plans()] == [1]


def test_without_a_library_python_does_the_same(folder):
    assert native.library() is None and native.lookup("versions_of", len) is len
    assert works() and not folder.exists()


def test_what_was_built_is_loaded(folder, content):
    keep(content)
    assert native.library() is not None
    assert native.lookup("versions_of", len)([torch.ones(1)]) == [0]
    assert not Path(native.library().__file__).exists()
    assert works()


def test_the_environment_turns_it_off(folder, content, monkeypatch):
    keep(content)
    monkeypatch.setenv("AOTGRAD_NATIVE", "0")
    assert native.library() is None and works()


def test_another_torch_or_python_has_another_key_and_one_with_sanitizers(monkeypatch):
    keys = {build.key()}
    monkeypatch.setenv("AOTGRAD_SANITIZE", "0" if build.native_sanitized() else "1")
    keys.add(build.key())
    monkeypatch.setattr(torch, "__version__", "2.99")
    keys.add(build.key())
    monkeypatch.setattr(build.sysconfig, "get_config_var", lambda name: "cpython-399")
    keys.add(build.key())
    assert len(keys) == 4


def test_sanitizers_are_an_option_of_the_build(monkeypatch, tmp_path):
    for setting, is_sanitized in (("0", False), ("1", True)):
        monkeypatch.setenv("AOTGRAD_SANITIZE", setting)
        assert ("-fsanitize=address,undefined" in build.command(build.SOURCE, tmp_path / "library.so")) is is_sanitized


@pytest.mark.parametrize("damage", [lambda c: c[:100], lambda c: c[:-1] + b"x", lambda c: b"", lambda c: c + b"x"])
def test_a_damaged_file_is_not_loaded(folder, content, caplog, damage):
    path = keep(content)
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.INFO, "aotgrad"):
        assert native.library() is None and works()
    assert "is damaged, or of another version" in caplog.text


@pytest.mark.parametrize("foreign", [b"", b"no library", b"\x7fELF" + bytes(64)])
def test_a_whole_file_that_is_no_library_is_said_to_be_none(folder, caplog, foreign):
    keep(foreign)
    assert native.library() is None and works()
    assert "are not used, Python functions replace them" in caplog.text


def test_a_library_of_something_else_is_not_loaded(folder, caplog):
    keep(Path(torch._C.__file__).read_bytes())
    assert native.library() is None and works()
    assert "does not define module export function (PyInit_library)" in caplog.text


def test_a_folder_that_others_can_write_is_not_used(folder, content):
    keep(content)
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="is not used: others can use it"):
        assert native.library() is None
    assert works()


def test_a_file_that_others_can_write_is_not_used(folder, content, caplog):
    keep(content).chmod(0o666)
    with caplog.at_level(logging.INFO, "aotgrad"):
        assert native.library() is None and works()
    assert "others can use it" in caplog.text


class FakeCompiler:
    """Stands for a compiler that takes a while."""

    def __init__(self, content: bytes) -> None:
        self.content, self.together = content, threading.Barrier(4)

    def __call__(self, command: list[str], **options: object) -> None:
        self.together.wait(20)
        Path(command[command.index("-o") + 1]).write_bytes(self.content)


def test_builds_at_once_leave_one_whole_file(folder, content, monkeypatch):
    monkeypatch.setattr(build.subprocess, "run", FakeCompiler(content))
    threads = [threading.Thread(target=build.build_library) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in folder.iterdir()] == [build.key()]
    assert build.native_store().read(build.key()) == content


def test_no_compiler(folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeError, match=r"the compiler cannot be run: .*no-such-compiler.*; set CXX"):
        build.build_library()
    assert not folder.exists()


def test_a_compiler_that_fails_says_why(folder, monkeypatch, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeError, match=r"the compiler fails: .*library.cpp(.|\n)*no such header"):
        build.build_library()
    assert not folder.exists()


@pytest.mark.filterwarnings("ignore:the cache in")
def test_a_folder_that_cannot_be_written(folder, content, monkeypatch):
    folder.parent.mkdir()
    folder.write_text("no folder")
    monkeypatch.setattr(build, "compile_library", lambda: content)
    with pytest.raises(NativeError, match="the library cannot be stored in"):
        build.build_library()


def test_the_command_line(folder, content, monkeypatch, capsys):
    def says(action: str) -> str:
        native.library.cache_clear()
        assert main(["native", action]) == 0
        return capsys.readouterr().out

    monkeypatch.setattr(build, "compile_library", lambda: content)
    assert f"{folder}\n0 files" in says("info") and "python -m aotgrad native build" in capsys.readouterr().out + says(
        "info"
    )
    assert says("build") == f"built in {folder}\n"
    assert re.search(r"1 file, \d\.\d MB", says("info")) and f"used with torch {torch.__version__}" in says("info")
    monkeypatch.setenv("AOTGRAD_NATIVE", "0")
    assert says("info").endswith("not used: AOTGRAD_NATIVE=0\n")
    assert says("clear") == f"removed 1 files from {folder}\n" and not list(folder.iterdir())


def test_the_command_line_without_a_compiler(folder, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["native", "build"]) == 1
    assert capsys.readouterr().err.startswith("NativeError: the compiler cannot be run")


def test_another_process_uses_what_was_built(folder, content):
    keep(content)
    program = "import torch, aotgrad; f = aotgrad.aot_function(torch.sin, aotgrad.nop); f(torch.ones(2)); f(torch.ones(2)); "
    program += "print(f.plans()[0].guards.tensors.argument, f.plans()[0].hits)"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "tensors 1\n"
