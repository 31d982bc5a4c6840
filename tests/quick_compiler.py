"""A C++ compiler that takes half as long for Inductor's kernels, since the suite runs each only a few times.

It optimizes less, and links empty libraries of the names of torch's, which are loaded before any kernel is. Linkers that
leave out a library which has none of the symbols would leave these out, and not all torches make theirs known otherwise.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

LIBRARIES = ("torch", "torch_cpu", "torch_python")

WRAPPER = """#!/usr/bin/env bash
arguments=()
for argument in "$@"; do
    case $argument in
    -O3) arguments+=(-O1) ;;
    -g1) ;;
    -shared) arguments+=(-shared -Wl,--no-as-needed) ;;
    *) arguments+=("$argument") ;;
    esac
done
exec {compiler} -L{folder} "${{arguments[@]}}"
"""


def use_quick_compiler() -> None:
    """Name the compiler in `CXX`, where Inductor of this process and its children looks, if nobody has named another one."""
    compiler = shutil.which("g++")
    if compiler is None or os.name != "posix" or "CXX" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="aotgrad-compiler-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for library in LIBRARIES:
        name = f"lib{library}.so"
        options = ["-shared", "-x", "c++", "/dev/null", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        if subprocess.run([compiler, *options], capture_output=True).returncode:
            return
    wrapper = folder / "g++"  # Inductor knows by its name what options it takes.
    wrapper.write_text(WRAPPER.format(compiler=compiler, folder=folder))
    wrapper.chmod(0o755)
    os.environ["CXX"] = str(wrapper)
    # Inductor compiles a program for each vector extension, in each new cache, to see whether the compiler has it.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
