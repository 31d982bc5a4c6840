"""Builds `library.cpp` with the user's compiler, stores it in the cache folder, and loads it from there.

    build_library()   compiles and stores; the key is the torch, the Python and the source
    load_built()      the module, or `None`: not built, for another torch, damaged, or in a folder that others can write

The file is checked like all files of the cache (`aotgrad.cache.store`); the bytes that were checked are those that are
loaded. The compiler is no part of the key: a library runs without the compiler that built it. For tests,
`AOTGRAD_SANITIZE=1` builds and loads one with sanitizers (`scripts/sanitize.sh`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import platform
import subprocess
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import torch

from aotgrad.cache.store import IS_SUPPORTED, Store
from aotgrad.errors import NativeError
from aotgrad.options import cache_folder, native_sanitized

SOURCE = Path(__file__).with_name("library.cpp")
"""What is compiled; it includes the headers beside it."""

NAME = "aotgrad.native.library"
COMPILER_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-w")
SANITIZERS = ("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")

log = logging.getLogger("aotgrad.native")


def native_store() -> Store:
    """The store of the library, with one file per torch and Python."""
    return Store(cache_folder() / "native")


def key() -> str:
    """The key of the library for this torch, Python and source: 64 hexadecimal digits."""
    torch_is = (torch.__version__, torch.version.git_version, torch.compiled_with_cxx11_abi())
    python_is = (sysconfig.get_config_var("SOABI"), platform.system(), platform.machine())
    text = [path.read_text() for path in (SOURCE, *sorted(SOURCE.parent.glob("*.h")))]
    return hashlib.sha256(repr((torch_is, python_is, compiler_flags(), *text)).encode()).hexdigest()


def compiler_flags() -> tuple[str, ...]:
    return (*COMPILER_FLAGS, *SANITIZERS) if native_sanitized() else COMPILER_FLAGS


def load_built() -> ModuleType | None:
    """The library as a module; `None` if it is missing or damaged."""
    store = native_store()
    content = store.read(key()) if IS_SUPPORTED else None
    if content is None:
        return None
    try:
        return module_of(content)
    except (ImportError, OSError) as error:
        log.warning("the C++ functions in %s are not used, Python functions replace them: %s", store.folder, error)
        return None


def module_of(content: bytes, name: str = NAME) -> ModuleType:
    """Load a library from a temporary file that nobody else can replace. Raises ImportError or OSError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(content)
        loader = ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    return module


def build_library() -> Store:
    """Compile the library and store it. Processes that already run do not use it.

    Raises:
        NativeError: there is no compiler, it fails, or the result cannot be stored.
    """
    if not IS_SUPPORTED:
        raise NativeError(f"this system ({platform.system()}) does not tell who owns a folder, so nothing is stored")
    store = native_store()
    store.write(key(), compile_library())
    if store.read(key()) is None:
        raise NativeError(f"the library cannot be stored in {store.folder}")
    return store


def compile_library(source: Path = SOURCE) -> bytes:
    """Compile the library, or another extension.

    Raises:
        NativeError
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        try:
            subprocess.run(command(source, path), check=True, capture_output=True, text=True)
        except OSError as error:
            raise NativeError(f"the compiler cannot be run: {error}; set CXX to a C++ compiler") from error
        except subprocess.CalledProcessError as error:
            raise NativeError(f"the compiler fails: {' '.join(error.cmd)}\n{error.stderr}") from error
        return path.read_bytes()


def command(source: Path, path: Path) -> list[str]:
    """The command that compiles `source` to `path`, with the compiler and paths that torch gives to extensions.

    Raises:
        NativeError
    """
    try:
        from torch.utils import cpp_extension
    except ImportError as error:
        raise NativeError(f"torch.utils.cpp_extension cannot be imported: {error}") from error
    headers = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    linked = [f"-L{folder}" for folder in cpp_extension.library_paths()]
    linked += ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    linked += ["-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else []
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    includes = [f"-I{folder}" for folder in headers]
    return [cpp_extension.get_cxx_compiler(), *compiler_flags(), abi, *includes, str(source), "-o", str(path), *linked]
