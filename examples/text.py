"""Real text that every machine has: the sources of Python's own standard library, one token per byte.

    text = StandardLibrary.load()
    tokens, targets = text.batch(step=0, batch_size=16, context=64)    # i64[16, 64], i64[16, 64]

The files are read in the order of their names and a batch depends on nothing but its arguments, so every run on one
machine sees the same batches. Another Python version has other sources, and with it other losses.
"""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

VOCAB_SIZE = 256
MAX_BYTES = 2**20


@dataclass(frozen=True)
class StandardLibrary:
    """The text as one long tensor, u8[N]."""

    data: Tensor

    @classmethod
    def load(cls, max_bytes: int = MAX_BYTES) -> "StandardLibrary":
        """Read the first `max_bytes` of the standard library's top-level modules.

        Raises:
            FileNotFoundError: this Python was installed without the sources of its library.
        """
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = bytearray()
        for path in sorted(folder.glob("*.py")):
            text += path.read_bytes()
            if len(text) >= max_bytes:
                break
        if not text:
            raise FileNotFoundError(f"no Python sources in {folder}; use a Python that was installed with its library")
        return cls(torch.frombuffer(text[:max_bytes], dtype=torch.uint8))

    def batch(self, step: int, batch_size: int, context: int) -> tuple[Tensor, Tensor]:
        """Return step number `step`'s windows, and the same windows one byte later."""
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.data) - context, (batch_size,), generator=generator)
        windows = self.data[starts[:, None] + torch.arange(context + 1)].long()
        return windows[:, :-1], windows[:, 1:]


def encode(text: str) -> Tensor:
    return torch.tensor(list(text.encode()))


def decode(tokens: Tensor) -> str:
    return bytes(tokens.tolist()).decode(errors="replace")
