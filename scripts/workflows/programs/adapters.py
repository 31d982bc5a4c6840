"""`peft`: adapters of low rank in a Llama of `transformers`."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model

from scripts.workflows.programs.common import STEPS, train
from scripts.workflows.programs.trainer import LENGTH, VOCABULARY, llama
from scripts.workflows.run import Run


def lora(run: Run) -> None:
    """All but the adapters is frozen; at the end they are merged, and the merged model is evaluated."""
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"])
    model = run.compile(get_peft_model(llama(), config))
    tokens = torch.randint(VOCABULARY, (STEPS, 4, LENGTH))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    train(run, model, optimizer, lambda step: model(input_ids=tokens[step], labels=tokens[step]).loss)
    with torch.no_grad():
        run.observe("without adapters", without_adapters(model, tokens[0]))
        run.observe("merged", model.merge_and_unload()(input_ids=tokens[0]).logits)


def without_adapters(model, tokens: torch.Tensor) -> torch.Tensor:
    with model.disable_adapter():
        return model(input_ids=tokens).logits
