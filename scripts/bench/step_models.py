"""Twelve small models whose training steps run in a fraction of a second on one core: each returns its loss.

    step = STEPS["gpt6"]()
    step.model(*step.inputs).backward()
    models, inputs = beside_eager("gpt6", {"aotgrad": {"backend": "aotgrad"}})
    print_table(__doc__, ["", "bytes"], row)                   of the models that the command line names

Three are models of the `transformers` library, with random weights.
"""

import argparse
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from capture import LSTM, ManyParameters
from models import Classifier, mlp, resnet
from partition_models import LENGTH, FromTransformers, ResidualMLP, Transformer, UNet
from tabulate import tabulate
from timing import add_threads, environment
from torch import Tensor, nn

WORDS, WIDTH, CLASSES, BATCH = 1000, 96, 10, 8


class Step(NamedTuple):
    """A model that returns its loss, and inputs for it."""

    model: nn.Module
    inputs: tuple[Tensor, ...]


def words(length: int = LENGTH) -> Tensor:
    return torch.randint(WORDS, (1, length))


def classes() -> Tensor:
    return torch.randint(CLASSES, (BATCH,))


def language_model(kind: str) -> Step:
    return Step(Transformer(kind, 6, width=WIDTH, vocabulary=WORDS), (words(), words()))


def images() -> Tensor:
    return torch.randn(BATCH, 3, 32, 32)


def gpt2(library: Any) -> nn.Module:
    model = library.GPT2LMHeadModel(library.GPT2Config(n_layer=3, n_embd=WIDTH, n_head=4, vocab_size=WORDS, use_cache=False))
    model.loss_type = "ForCausalLM"  # otherwise it writes to a logger, which Dynamo does not trace
    return model


def bert(library: Any) -> nn.Module:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4}
    return library.BertForMaskedLM(library.BertConfig(**sizes, vocab_size=WORDS, use_cache=False))


def llama(library: Any) -> nn.Module:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    return library.LlamaForCausalLM(library.LlamaConfig(**sizes, vocab_size=WORDS, use_cache=False))


def of_transformers(make: Callable[[Any], nn.Module]) -> Step:
    return Step(FromTransformers(make, input_ids="", labels=""), (words(128), words(128)))


STEPS: dict[str, Callable[[], Step]] = {
    "mlp8": lambda: Step(Classifier(mlp(CLASSES, layers=8)), (torch.randn(BATCH, 256), classes())),
    "residual_mlp": lambda: Step(ResidualMLP(12, 128), (torch.randn(256, 128), torch.randint(10, (256,)))),
    "resnet": lambda: Step(Classifier(resnet(CLASSES)), (images(), classes())),
    "unet": lambda: Step(UNet((8, 16, 32, 64)), (images(), images())),
    "bert6": lambda: language_model("bert"),
    "gpt6": lambda: language_model("gpt"),
    "llama6": lambda: language_model("llama"),
    "lstm50": lambda: Step(LSTM(), (torch.randn(50, 4, 32),)),
    "params400": lambda: Step(ManyParameters(), (torch.ones(4),)),
    "hf_gpt2": lambda: of_transformers(gpt2),
    "hf_bert": lambda: of_transformers(bert),
    "hf_llama": lambda: of_transformers(llama),
}


def beside_eager(name: str, compiled: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, nn.Module], tuple[Tensor, ...]]:
    """A model as "eager", copies compiled with these arguments of `torch.compile`, and its inputs."""
    torch.manual_seed(0)
    model, inputs = STEPS[name]()
    torch._dynamo.reset()
    models = {"eager": model} | {side: copy.deepcopy(model) for side in compiled}
    for side, settings in compiled.items():
        models[side].compile(**settings)
    return models, inputs


def print_table(description: str | None, headers: Sequence[str], row: Callable[[str], Sequence[str]]) -> None:
    """Print a row for each of the models that the command line names. `row` takes a name; `headers` begin with the unit."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="which models")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    add_threads(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tablefmt = "github" if arguments.markdown else "simple"
    align = ["left", *["right"] * (len(headers) - 1)]
    print(f"{environment()}\n")
    print(tabulate(map(row, arguments.only), headers, tablefmt, disable_numparse=True, colalign=align))
