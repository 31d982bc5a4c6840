"""`accelerate`: its loop with accumulation and clipping; and `peft` on a model of `transformers`."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from scripts.workflows.programs.common import Batches, mlp
from scripts.workflows.run import Run


def accelerate_loop(run: Run) -> None:
    """Gradients are accumulated over two batches and clipped."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = run.compile(mlp(16, 64, 64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    data = DataLoader(Batches(x=torch.randn(64, 16), y=torch.randint(4, (64,))), batch_size=4)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    for batch in data:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            run.step(loss, model)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
