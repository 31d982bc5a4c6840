"""A C++ compiler that takes half as long for Inductor's kernels, since the suite runs each only a few times.

It optimizes less, and links empty libraries named like torch's, which are loaded before any kernel. Linkers that drop
a library without needed symbols would drop these, and not every torch publishes its own in another way.
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
    """Set `CXX`, which Inductor reads in this process and its children, unless it is set already."""
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
    wrapper = folder / "g++"  # Inductor derives the supported options from the compiler's name.
    wrapper.write_text(WRAPPER.format(compiler=compiler, folder=folder))
    wrapper.chmod(0o755)
    os.environ["CXX"] = str(wrapper)
    # In each new cache, Inductor compiles a program per vector extension to detect compiler support.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
