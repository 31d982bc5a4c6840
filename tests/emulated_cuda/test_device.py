"""The emulated device behaves like a GPU where programs can tell, as far as docs/emulated_cuda.md promises."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tests.emulated_cuda import build, device

ROOT = Path(__file__).parents[2]


def test_there_are_two_devices():
    assert torch.cuda.is_available() and torch.cuda.device_count() == device.DEVICES
    assert torch.ones(1).device == torch.device("cuda", 0)
    with torch.cuda.device(1):
        assert torch.ones(1, device="cuda").device == torch.device("cuda", 1) == torch.ones(1).cuda().device
    assert torch.cuda.current_device() == 0


def test_another_thread_has_its_own_current_device():
    found = []
    torch.cuda.set_device(1)
    try:
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_device()))
        thread.start()
        thread.join()
        assert torch.cuda.current_device() == 1 and found == [0]
    finally:
        torch.cuda.set_device(0)


@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("cuda:0", "cpu"), ("cpu", "cuda:1")])
def test_tensors_of_two_devices_do_not_mix(devices):
    x, y = (torch.ones(3, device=name) for name in devices)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + y
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.index_select(x, 0, y.long())


def test_what_mixes_devices():
    x = torch.arange(3.0)
    assert torch.equal(x + torch.tensor(1.0, device="cpu"), torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(x[torch.tensor([2, 0], device="cpu")], torch.tensor([2.0, 0.0]))
    on_cpu = torch.zeros(3, device="cpu").copy_(x)
    assert on_cpu.device.type == "cpu" and on_cpu.tolist() == [0, 1, 2]
    assert x.to("cuda:1").cpu().tolist() == [0, 1, 2]


VIEWS = {
    "t": torch.t,
    "select": lambda x: x[1],
    "view": lambda x: x.view(-1),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "as_strided": lambda x: x.as_strided((2,), (1,), 3),
    "detach": torch.detach,
    "expand": lambda x: x.expand(2, 2, 3)[1],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shares_memory(view):
    x = torch.zeros(2, 3)
    VIEWS[view](x).add_(1)
    assert VIEWS[view](x).device == x.device and (x[1] == 1).any()


LAZY = {"conj": torch.conj, "neg": torch._neg_view, "both": lambda x: torch.conj(x).imag}
COPIES = {
    "clone": torch.clone,
    "to the CPU": torch.Tensor.cpu,
    "product": lambda x: x * 1,
    "copy_": lambda x: torch.empty_like(x).copy_(x),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("lazy", LAZY)
def test_lazy_conjugates_and_negatives(lazy, copy):
    x = torch.randn(3, dtype=torch.complex64)
    found, expected = (COPIES[copy](LAZY[lazy](value)).cpu() for value in (x, x.cpu()))
    assert torch.equal(found.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg())


def test_an_output_that_is_enlarged():
    x = torch.empty(0)
    torch.add(torch.ones(1000), 1, out=x)
    assert x.tolist() == [2] * 1000 and x.untyped_storage().nbytes() >= 4000
    assert x.resize_(2000)[:1000].tolist() == [2] * 1000


def test_storages():
    x = torch.ones(4)
    y = torch.empty(0).set_(x.untyped_storage(), 1, (3,), (1,))
    assert y.untyped_storage()._cdata == x.untyped_storage()._cdata and y.tolist() == [1, 1, 1]
    assert torch.empty(0).set_(x).data_ptr() == x.data_ptr() and x.clone().set_().numel() == 0
    for size in (32, 8, 0):
        assert x.untyped_storage().resize_(size).nbytes() == size
    made = torch.UntypedStorage(8, device="cuda:1")
    assert made.device == torch.device("cuda:1") and made.nbytes() == 8
    assert torch.UntypedStorage(8).device.type == "cpu" and copy.deepcopy(torch.ones(3)).tolist() == [1, 1, 1]


def test_allocated_bytes_are_counted():
    before = torch.cuda.memory_allocated(), torch.cuda.memory_allocated(1)
    x = torch.ones(1000, device="cuda:1")
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_allocated(1)) == (before[0], before[1] + 4096)
    torch.cuda.reset_peak_memory_stats(1)
    del x
    assert torch.cuda.memory_allocated(1) == before[1] and torch.cuda.max_memory_allocated(1) == before[1] + 4096


# --- Random numbers


def draws(name: str) -> list[torch.Tensor]:
    """From the default generator, by ops that take a generator and by one that does not."""
    x = torch.ones(8, device=name)
    return [torch.rand(8, device=name), torch.randn_like(x), torch.nn.functional.dropout(x), torch.randperm(8, device=name)]


def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> list[bool]:
    return [torch.equal(a.cpu(), b.cpu()) for a, b in zip(one, other, strict=True)]


def test_each_device_has_a_generator():
    torch.manual_seed(3)
    first, again, other = draws("cuda:0"), draws("cuda:0"), draws("cuda:1")
    assert are_equal(first, other) == [True] * 4 and not any(are_equal(first, again))
    state = torch.cuda.get_rng_state(1)
    assert state.device.type == "cpu" and state.numel() == 16
    later = draws("cuda:1")
    torch.cuda.set_rng_state(state, 1)
    assert are_equal(draws("cuda:1"), later) == [True] * 4


def test_the_generator_of_the_cpu_is_another():
    state = torch.random.default_generator.get_state()
    draws("cuda:0")
    assert torch.equal(torch.random.default_generator.get_state(), state)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.rand(3, device="cuda", generator=torch.Generator("cpu"))


def test_a_generator_of_the_user():
    one, other = (torch.Generator("cuda:1").manual_seed(4) for _ in range(2))
    state = torch.cuda.get_rng_state(1)
    assert torch.equal(*(torch.rand(3, device="cuda:1", generator=generator) for generator in (one, other)))
    assert torch.equal(torch.cuda.get_rng_state(1), state)


def test_a_capture_forbids_to_read_the_state():
    generator = torch.cuda.default_generators[0]
    saved = generator.clone_state()
    with device.capturing():
        assert torch.cuda.is_current_stream_capturing()
        drawn = torch.rand(3)
        for forbidden in (generator.get_state, generator.initial_seed, lambda: generator.manual_seed(1)):
            with pytest.raises(RuntimeError, match="during CUDA graph capture"):
                forbidden()
        generator.graphsafe_set_state(saved)
        assert torch.equal(torch.rand(3), drawn)
    assert not torch.cuda.is_current_stream_capturing()


# --- Autograd


def test_a_backward_runs_on_the_thread_of_the_device():
    threads = []
    for name in ("cpu", "cuda:0", "cuda:1"):
        x = torch.ones(3, device=name, requires_grad=True)
        y = x * 2
        y.register_hook(lambda gradient: threads.append(threading.get_ident()))
        y.sum().backward()
        assert x.grad.device == x.device and x.grad.tolist() == [2, 2, 2]
    assert threads[0] == threading.get_ident() and len(set(threads)) == 3


def in_a_process(program: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


LOAD = "from tests.emulated_cuda import device; device.load(); import torch; "


def test_a_process_ends_cleanly():
    program = "(torch.ones(3, device='cuda:1', requires_grad=True) * 2).sum().backward(); print('done')"
    done = in_a_process(LOAD + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_device_is_initialized_when_it_is_used():
    program = "torch.manual_seed(3); print(torch.cuda.is_initialized()); x = torch.rand(2, device='cuda'); "
    program += "torch.cuda.init(); print(torch.cuda.is_initialized())"
    assert in_a_process(LOAD + program).stdout == "False\nTrue\n"


# --- Loading


def test_torch_may_not_be_there_before():
    with pytest.raises(RuntimeError, match="torch is imported already"):
        device.load()


def test_the_library_is_built_once():
    path = build.library_path()
    modified = path.stat().st_mtime_ns
    assert build.library_path() == path and path.stat().st_mtime_ns == modified
    assert path.stat().st_uid == os.getuid() and build.FOLDER.stat().st_mode & 0o777 == 0o700


def test_another_source_or_torch_has_another_key(monkeypatch, tmp_path):
    keys = {build.key()}
    monkeypatch.setattr(build, "COMPILER_FLAGS", ("-O0",))
    keys.add(build.key())
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    keys.add(build.key())
    (tmp_path / "version.py").write_text("2.99")
    monkeypatch.setattr(build, "torch_folder", lambda: tmp_path)
    keys.add(build.key())
    assert len(keys) == 4


def test_a_compiler_that_is_missing_or_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "FOLDER", tmp_path / "folder")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="there is no no-such-compiler; set CXX"):
        build.library_path()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeError, match="the compiler fails: false"):
        build.library_path()
    assert not list((tmp_path / "folder").glob("*.so"))
