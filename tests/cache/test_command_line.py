"""`python -m aotgrad cache`."""

from __future__ import annotations

import pytest

from aotgrad.cache.store import Store
from aotgrad.inspect.command_line import main


def test_info_and_clear(capsys, folder):
    assert main(["cache", "info"]) == 0
    assert capsys.readouterr().out == f"{folder}\n0 files, 0.0 MB of at most 1074 MB\n"
    Store(folder).write("a", bytes(1_000_000))
    assert main(["cache", "info"]) == 0
    assert "1 file, 1.0 MB of at most 1074 MB" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 1 files from {folder}\n"
    assert Store(folder).files() == []


@pytest.mark.filterwarnings("ignore:the cache in")
def test_a_folder_that_is_not_used(capsys, folder):
    Store(folder).write("a", b"one")
    folder.chmod(0o755)
    for action in ("info", "clear"):
        assert main(["cache", action]) == 1
        assert "others can use it" in capsys.readouterr().err
    assert (folder / "a").exists()


def test_wrong_usage(capsys):
    with pytest.raises(SystemExit) as status:
        main(["cache", "burn"])
    assert status.value.code == 2
