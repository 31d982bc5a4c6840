"""A GPT of one block, small enough to read the compiled graphs:

python -m aotgrad explain examples/small_gpt.py:model --option memory_budget=0.7
"""

import torch
from gpt import GPT, GPTConfig

model = GPT(GPTConfig(layers=1, heads=2, width=32, context=16))


def example_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and the next token of each, both i64[2, 16]."""
    tokens = torch.arange(34).reshape(2, 17) % 7
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
