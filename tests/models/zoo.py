"""The table of models that are trained: compiled and eager, side by side.

In: nothing. Out: `CASES`, one `ModelCase` a line, sorted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from . import awkward_models as awkward
from . import plain_models as plain
from . import transformers_models as hf


@dataclass(frozen=True)
class ModelCase:
    """One model, its batches, and the graphs that Dynamo makes of it.

    Attributes:
        name: The test's id.
        build: Makes the model from the global random state; the same seed gives the same weights.
        batch: Makes the keyword arguments of step 0, 1, 2 from the global random state.
        graphs: Number of graphs from Dynamo in all steps together.
        graph_breaks: Number of graph breaks in the model's code; with 0 it is compiled with `fullgraph`.
        inductor_rtol, inductor_atol: Tolerance of Inductor's halves, which reorder arithmetic.
        symbolic: Whether it is also compiled with `dynamic=True`, which makes sizes and Python numbers symbolic.
        rtol, atol: Tolerance of eager halves. Not zero, because gradients may be summed in another order.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Mapping[str, Tensor]]
    graphs: int = 1
    graph_breaks: int = 0
    inductor_rtol: float = 1e-4
    inductor_atol: float = 1e-5
    symbolic: bool = False
    rtol: float = 1e-6
    atol: float = 1e-7


CASES = (
    # eager rounds to bfloat16 after each op
    ModelCase("autocast_mlp", awkward.AutocastMLP, awkward.feature_batch, inductor_rtol=0.1, inductor_atol=1e-2),
    ModelCase("bert", hf.bert, hf.padded_language_batch),
    ModelCase("click_model", awkward.ClickModel, awkward.click_batch),
    ModelCase("denoiser", plain.Denoiser, plain.grey_image_batch, symbolic=True),
    ModelCase("domain_adversarial", awkward.DomainAdversarial, awkward.feature_batch),
    ModelCase("fourier_operator", awkward.FourierOperator, awkward.signal_batch, symbolic=True),
    ModelCase("gpt2", hf.gpt2, hf.language_batch),
    ModelCase("graph_break_mlp", awkward.GraphBreakMLP, awkward.feature_batch, graphs=2, graph_breaks=1),
    ModelCase("graph_network", awkward.GraphNetwork, awkward.graph_batch, symbolic=True),
    ModelCase("growing_attention", awkward.GrowingAttention, awkward.growing_batch, graphs=2),
    ModelCase("growing_transformer_encoder", plain.TransformerClassifier, plain.growing_token_batch, graphs=2),
    ModelCase("llama", hf.llama, hf.embedded_language_batch),
    ModelCase("low_rank_adapter", awkward.LowRankAdapter, awkward.feature_batch),
    ModelCase("lstm", plain.LSTMLanguageModel, plain.token_batch),
    ModelCase("lstm_cell", plain.LSTMCellLanguageModel, plain.token_batch),
    ModelCase("mamba", hf.mamba, hf.language_batch),
    ModelCase("mean_teacher", awkward.MeanTeacher, awkward.feature_batch),
    ModelCase("qwen_moe", hf.qwen_moe, hf.language_batch),
    ModelCase("resnet", plain.ResNet, plain.image_batch, symbolic=True),
    ModelCase("spectral_discriminator", awkward.SpectralDiscriminator, awkward.feature_batch),
    ModelCase("t5", hf.t5, hf.translation_batch),
    ModelCase("transformer_encoder", plain.TransformerClassifier, plain.token_batch),
    ModelCase("two_heads", awkward.TwoHeads, awkward.feature_batch),
    ModelCase("unet", plain.UNet, plain.segmentation_batch),
    ModelCase("vae", plain.VAE, plain.pixel_batch, symbolic=True),
    ModelCase("vector_quantizer", awkward.VectorQuantizer, awkward.feature_batch),
    ModelCase("vit", hf.vit, hf.photo_batch, symbolic=True),
    ModelCase("whisper", hf.whisper, hf.speech_batch),
)
