"""`accelerate`: its loop with accumulation and clipping."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader

from scripts.workflows.programs.common import Batches, mlp
from scripts.workflows.run import Run


def accelerate_loop(run: Run) -> None:
    """Gradients are accumulated over two batches and clipped. `prepare` compiles the model; aotgrad is installed for it."""
    AcceleratorState._reset_state()  # all accelerators of a process have the settings of the first one
    with run.installed() as backend:
        train(run, Accelerator(cpu=True, gradient_accumulation_steps=2, dynamo_backend=backend))


def train(run: Run, accelerator: Accelerator) -> None:
    plain = mlp(16, 64, 64, 4)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    data = DataLoader(Batches(x=torch.randn(64, 16), y=torch.randint(4, (64,))), batch_size=4)
    model, optimizer, data, schedule = accelerator.prepare(plain, optimizer, data, schedule)
    for batch in data:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            run.step(loss, plain)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
