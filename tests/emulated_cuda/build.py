"""Compiles `library/` for the installed torch, once, and keeps it in a folder of the user.

    library_path()       the library: compiled now, or by an earlier process

torch is not imported: the library must be loaded before torch. Processes that build at the same time wait for one of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

SOURCES = Path(__file__).with_name("library")
FOLDER = Path(tempfile.gettempdir()) / f"aotgrad-tests-emulated-cuda-{getattr(os, 'getuid', int)()}"
COMPILER_FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-D_GLIBCXX_USE_CXX11_ABI=1")


def library_path() -> Path:
    """The compiled library.

    Raises:
        RuntimeError: this is not Linux, or the compiler is missing or fails.
    """
    if sys.platform != "linux":
        raise RuntimeError(f"the emulated device is built for Linux only, this is {sys.platform}")
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    path = FOLDER / f"{key()}.so"
    with FileLock(FOLDER / "lock"):
        if not path.exists():
            compile_to(path)
    return path


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "torch is not installed"
    return Path(spec.origin).parent


def key() -> str:
    """Stands for the torch, the flags and the sources: 64 hexadecimal digits."""
    texts = [(torch_folder() / "version.py").read_text(), str(torch_folder()), *COMPILER_FLAGS]
    texts += [path.read_text() for path in sorted(SOURCES.iterdir())]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def compile_to(path: Path) -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise RuntimeError(f"the emulated device needs a C++ compiler, and there is no {compiler}; set CXX")
    unfinished = path.with_suffix(".unfinished")
    done = subprocess.run(command(compiler, unfinished), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the compiler fails: {' '.join(done.args)}\n{done.stderr}")
    unfinished.replace(path)


def command(compiler: str, path: Path) -> list[str]:
    headers, libraries = torch_folder() / "include", torch_folder() / "lib"
    includes = [f"-I{headers}", f"-I{headers / 'torch' / 'csrc' / 'api' / 'include'}"]
    linked = [f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]
    return [compiler, *COMPILER_FLAGS, *includes, str(SOURCES / "library.cpp"), "-o", str(path), *linked]
