"""`transformers.Trainer` with models of three families, random weights."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from scripts.workflows.programs.common import STEPS, Batches
from scripts.workflows.run import Run

VOCABULARY, LENGTH = 128, 24


def trainer_gpt2(run: Run) -> None:
    """GPT-2 in bfloat16, gradients accumulated over two batches, dropout."""
    fit(run, gpt2(), bf16=True, gradient_accumulation_steps=2)


def trainer_bert(run: Run) -> None:
    """BERT for sequence classification with gradient checkpointing and dropout."""
    size = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, num_labels=3, **size)
    model = transformers.BertForSequenceClassification(config)
    fit(run, model, labels=torch.randint(3, (64,)), gradient_checkpointing=True)


def trainer_llama(run: Run) -> None:
    """Llama, saved in the middle; another trainer resumes with another model. The trainers compile, aotgrad is installed."""
    with tempfile.TemporaryDirectory() as folder:
        first = dict(observe_losses=False, save_steps=STEPS // 2, max_steps=STEPS // 2)
        for settings in (first, dict(resume=str(Path(folder) / f"checkpoint-{STEPS // 2}"))):
            with run.installed() as backend:
                compiled = dict(torch_compile=backend is not None, torch_compile_backend=backend)
                fit(run, llama(), folder, compile_first=False, **compiled, **settings)


def trainer_llama_bf16(run: Run) -> None:
    """Llama in bfloat16, with gradient checkpointing and accumulation."""
    fit(run, llama(), bf16=True, gradient_checkpointing=True, gradient_accumulation_steps=2)


def gpt2() -> PreTrainedModel:
    size = dict(n_embd=64, n_layer=2, n_head=2, n_positions=LENGTH)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, use_cache=False, **size)
    return transformers.GPT2LMHeadModel(config)


def llama() -> PreTrainedModel:
    size = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, use_cache=False, **size)
    return transformers.LlamaForCausalLM(config)


class Record(TrainerCallback):
    """Reports a step's gradients to the run, before the optimizer changes anything."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        self.run, self.model = run, model

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        self.run.step(None, self.model)


def fit(
    run: Run,
    model: PreTrainedModel,
    folder: str | None = None,
    labels: torch.Tensor | None = None,
    resume: str | None = None,
    observe_losses: bool = True,
    compile_first: bool = True,
    **arguments: Any,
) -> None:
    """Train on random tokens; all gradients are observed, and the losses that the trainer logs. The model is compiled before
    the trainer gets it, or by the trainer if `arguments` say so."""
    tokens = torch.randint(VOCABULARY, (64, LENGTH), generator=torch.Generator().manual_seed(0))
    data = Batches(input_ids=tokens, labels=tokens if labels is None else labels)
    common = dict(max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1, report_to=[], use_cpu=True)
    saving = dict(save_strategy="steps" if "save_steps" in arguments else "no", disable_tqdm=True)
    with tempfile.TemporaryDirectory() as scratch:
        settings = TrainingArguments(folder or scratch, **{**common, **saving, **arguments})
        given = run.compile(model) if compile_first else model
        trainer = Trainer(given, settings, train_dataset=data, callbacks=[Record(run, model)])
        trainer.train(resume_from_checkpoint=resume)
    if observe_losses:
        run.observe_all("loss of step", [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
