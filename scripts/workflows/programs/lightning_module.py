"""`lightning`: a module with automatic optimization, trained by its `Trainer`."""

from __future__ import annotations

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from scripts.workflows.programs.common import Batches, Chain, mlp
from scripts.workflows.run import Run


class Classifier(lightning.LightningModule):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.record, self.losses = run, []
        self.network = Chain(mlp(16, 64, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.1), mlp(64, 32, 4))

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss = torch.nn.functional.cross_entropy(self.network(batch["x"]), batch["y"])
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.log("validation", torch.nn.functional.cross_entropy(self.network(batch["x"]), batch["y"]))

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.record.step(self.losses[-1], self)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


def lightning_trainer(run: Run) -> None:
    """Batch norm and dropout, two epochs with validation, gradients accumulated and clipped. What `torch.compile` makes of
    the module goes to the trainer; aotgrad is installed for it."""
    data = DataLoader(Batches(x=torch.randn(64, 16), y=torch.randint(4, (64,))), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Classifier(run)
    with run.installed() as backend:
        trainer.fit(module if backend is None else torch.compile(module, backend=backend), data, data)
    run.observe("validation", trainer.callback_metrics["validation"])
