"""Rewrite the golden files under expect/ from the current output of the tests, and show the changes.

    python scripts/accept.py                      every test file that uses the `golden` fixture
    python scripts/accept.py tests/joint -k cse   some of them; arguments go to pytest

Read `git diff expect/` before committing: a golden file is documentation, and a change to it a claim.
"""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def golden_tests() -> list[str]:
    return [str(path) for path in sorted(REPOSITORY.glob("tests/**/test_*.py")) if "golden" in path.read_text()]


def main() -> int:
    command = [sys.executable, "-m", "pytest", *(sys.argv[1:] or golden_tests())]
    status = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "EXPECTTEST_ACCEPT": "1"}).returncode
    subprocess.run(["git", "--no-pager", "diff", "--stat", "--", "expect"], cwd=REPOSITORY)
    subprocess.run(["git", "status", "--short", "--", "expect"], cwd=REPOSITORY)  # This one lists new files too.
    return status


if __name__ == "__main__":
    sys.exit(main())
