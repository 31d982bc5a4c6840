"""Compiles several of Inductor's C++ kernels in one library: the headers take a compiler longer than six kernels.

In: kernels from Inductor's code generator, one function named `kernel` each. Out: the source of one library, a Python module
with the functions `kernel_0`, `kernel_1` and so on. Each kernel is in its own namespace and compiles to the same code as
alone. Python calls the functions with an array of arguments, without a tuple.

    kernels = [CppKernel(("float*", "const int64_t"), '#include ...\\nextern "C" void kernel(float* out, int64_t n) {...}')]
    start_together(kernels)()

`KernelBatch` collects the kernels of several graphs. Equal ones are compiled once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aotgrad import torch_compat
from aotgrad.backends.inductor.compiler_threads import submit_to_compilers

log = logging.getLogger("aotgrad.backends")

KERNELS_PER_LIBRARY = 6
"""This many take as long as the headers, so smaller libraries would not finish much earlier on parallel compilers."""

DEFINITION = re.compile(r'extern\s+"C"\s+void\s+kernel\s*\(')
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
DIRECTIVE = re.compile(r"^\s*#\s*(?!pragma\b)", re.MULTILINE)
FASTER_FUNCTIONS = re.compile(r"\b(?P<vector>\w+)\.(?P<function>tanh)\(\)")
"""Calls of members of torch's vectors that `functions.h` has in a faster form."""

ARGUMENT = re.compile(r"(?:const )?(?:[\w:]+\*|int64_t|float)")


@dataclass(frozen=True)
class CppKernel:
    """The argument types and the source of a kernel."""

    argument_types: tuple[str, ...]
    source: str

    @property
    def can_share(self) -> bool:
        """Whether it can share a source file: it is one function, without preprocessor directives except headers."""
        body = INCLUDE.sub("", self.source)
        is_alone = len(DEFINITION.findall(body)) == 1 and DIRECTIVE.search(body) is None
        return is_alone and all(map(ARGUMENT.fullmatch, self.argument_types))


@dataclass(frozen=True)
class KernelBatch:
    """The kernels of some graphs, and what else is done as soon as the functions of all are there.

    `places`: a namespace, the name of a function in it, and its kernel, which is there until the function is.
    """

    places: Sequence[tuple[dict[str, Any], str, CppKernel]]
    then: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def collected(cls) -> Iterator[KernelBatch]:
        """Collects the kernels of the graphs that Inductor compiles inside."""
        with torch_compat.collected_cpp_kernels(CppKernel) as places:
            yield cls(places)

    def start(self) -> Callable[[], None]:
        """Start to compile; returns a function that waits, puts the functions into their places, and does the rest."""
        kernels = list(dict.fromkeys(kernel for _, _, kernel in self.places))
        finish = start_together(kernels)

        def fill_and_go_on() -> None:
            functions = dict(zip(kernels, finish(), strict=True))
            for namespace, key, kernel in self.places:
                namespace[key] = functions[kernel]
            for each in self.then:
                each()

        return fill_and_go_on


def start_together(kernels: Sequence[CppKernel]) -> Callable[[], list[Callable]]:
    """Start to compile kernels; several compilers may run in parallel.

    Returns:
        A function that waits for them, and returns the kernels as Python functions of tensors and numbers.
    """
    together = libraries([k for k, kernel in enumerate(kernels) if kernel.can_share], kernels)
    alone = {k: start_alone(kernel) for k, kernel in enumerate(kernels) if not kernel.can_share}
    started = [(positions, start_library([kernels[k] for k in positions])) for positions in together]

    def finish() -> list[Callable]:
        functions = {k: finish_one() for k, finish_one in alone.items()}
        for positions, finish_library in started:
            functions.update(zip(positions, finish_library(), strict=True))
        return [functions[k] for k in range(len(kernels))]

    return finish


def start_alone(kernel: CppKernel) -> Callable[[], Callable]:
    return torch_compat.start_cpp_kernel(kernel.argument_types, kernel.source, submit_to_compilers())


def start_library(kernels: Sequence[CppKernel]) -> Callable[[], list[Callable]]:
    """Start to compile a library; returns a function that waits for its functions.

    If the library does not compile, its kernels are compiled one by one.
    """
    load = torch_compat.start_cpp_library(library_source(kernels), submit_to_compilers())

    def finish() -> list[Callable]:
        try:
            module = load()
        except Exception as error:
            log.info("%d C++ kernels are compiled one by one: %s", len(kernels), error)
            return [start_alone(kernel)() for kernel in kernels]
        return [getattr(module, name(k)) for k in range(len(kernels))]

    return finish


def libraries(sharing: Sequence[int], kernels: Sequence[CppKernel]) -> list[list[int]]:
    """The positions `sharing`, divided among libraries; the longest kernels are dealt first."""
    count = min(torch_compat.cpp_compilers(), -(-len(sharing) // KERNELS_PER_LIBRARY))
    longest_first = sorted(sharing, key=lambda k: -len(kernels[k].source))
    return [longest_first[start::count] for start in range(count)]


def library_source(kernels: Sequence[CppKernel]) -> str:
    """The source of a library with these kernels."""
    headers = dict.fromkeys(header for kernel in kernels for header in INCLUDE.findall(kernel.source))
    functions = "".join(f'{{"{name(k)}", AS_FUNCTION(call_{k}), METH_FASTCALL, nullptr}}, ' for k in range(len(kernels)))
    flattened = FLATTENED if len(kernels) > 1 else "#define FLATTENED"
    return "\n".join(
        [*headers, shared_code(), flattened, *(body(k, kernel) for k, kernel in enumerate(kernels)), BINDINGS]
        + [binding(k, kernel) for k, kernel in enumerate(kernels)]
        + [MODULE.replace("FUNCTIONS", functions)]
    )


@functools.cache
def shared_code() -> str:
    """C++ code that all kernels share."""
    folder = importlib.resources.files("aotgrad.backends.inductor")
    return "\n".join(folder.joinpath(name).read_text() for name in ("masks.h", "functions.h"))


def name(position: int) -> str:
    """The name of a kernel in its module."""
    return f"kernel_{position}"


def body(position: int, kernel: CppKernel) -> str:
    """A kernel in a namespace, without its headers, that calls the faster functions."""
    function = DEFINITION.sub("FLATTENED void kernel(", INCLUDE.sub("", kernel.source))
    function = FASTER_FUNCTIONS.sub(r"aotgrad_functions::\g<function>(\g<vector>)", function)
    return f"namespace {name(position)} {{\n{function}\n}}"


def binding(position: int, kernel: CppKernel) -> str:
    """The function that Python calls for a kernel."""
    count = len(kernel.argument_types)
    kinds = (kind.removeprefix("const ") for kind in kernel.argument_types)
    arguments = ", ".join(f"argument<{kind}>(args[{k}])" for k, kind in enumerate(kinds))
    return (
        f"static PyObject* call_{position}(PyObject*, PyObject* const* args, Py_ssize_t count) {{\n"
        f"    return guarded(count, {count}, [&] {{ {name(position)}::kernel({arguments}); }});\n"
        "}"
    )


FLATTENED = """
#ifdef __GNUC__
#define FLATTENED __attribute__((flatten))
#else
#define FLATTENED
#endif
"""
"""Compilers inline functions with one caller; with several kernels in a source, torch's vector functions have more."""

BINDINGS = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cstdlib>
#include <stdexcept>
#include <type_traits>
#define AS_FUNCTION(call) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)(void)>(call))

static void* (*address_of)(PyObject*);

template <typename T> static inline T argument(PyObject* value) {
    if constexpr (std::is_pointer_v<T>) {
        return static_cast<T>(address_of(value));
    } else {
        T number;
        if constexpr (std::is_floating_point_v<T>) number = static_cast<T>(PyFloat_AsDouble(value));
        else number = PyLong_AsSsize_t(value);
        if (number == T(-1) && PyErr_Occurred()) throw std::invalid_argument("a kernel takes a number here");
        return number;
    }
}

template <typename Call> static inline PyObject* guarded(Py_ssize_t count, Py_ssize_t expected, Call call) {
    try {
        if (count != expected) throw std::invalid_argument("a kernel got another number of arguments than it takes");
        call();
        Py_RETURN_NONE;
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "a kernel raised something that is no std::exception");
    }
    return nullptr;
}
"""
"""The code that the functions for Python share."""

MODULE = """
static PyMethodDef functions[] = {FUNCTIONS{nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, functions};

PyMODINIT_FUNC PyInit_kernel(void) {
    const char* address = std::getenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR");
    if (address == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "torch has not said where to find a tensor's data");
        return nullptr;
    }
    address_of = reinterpret_cast<void* (*)(PyObject*)>(std::strtoull(address, nullptr, 10));
    PyObject* module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    if (module != nullptr) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
"""
"""The Python module that Inductor's library loader expects."""
