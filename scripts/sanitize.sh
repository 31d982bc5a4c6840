#!/usr/bin/env bash
# Runs tests of the C++ functions, which the sanitizers of addresses and of undefined behaviour watch.
# With arguments, which go to pytest, it runs what they say: scripts/sanitize.sh tests/guards -x
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"
use_environment test,emulated,docs
cd "$repository"

[ $# != 0 ] || set -- -n 2 tests/native/test_library.py tests/native/test_node.py tests/runtime
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" AOTGRAD_SANITIZE=1 AOTGRAD_TEST_NATIVE=1
# Python never frees all of its memory. Its own allocator would hide which objects it frees.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc
# The sanitizer must be the first library; when it starts, it looks for that of C++, which Python does not load.
compiler=${CXX:-c++}
preload="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libstdc++.so)"
exec env LD_PRELOAD="$preload" "$PYTHON" -m pytest "$@"
