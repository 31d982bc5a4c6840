"""Architectures from `transformers` with random weights, built from configurations at toy sizes: nothing to download.

Same form as `plain_models`: a function that builds a model with the output entry `"loss"`, and functions that
make batches. Caches for generation are off, as in training; dropout stays on where it is the default.
"""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 64
WIDTH = 16
TEXT_SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def tokens(length: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (2, length))


def language_batch(step: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(8), "labels": tokens(8)}


def padded_language_batch(step: int) -> dict[str, Tensor]:
    attention_mask = torch.ones(2, 8, dtype=torch.long)
    attention_mask[1, 5:] = 0
    return {**language_batch(step), "attention_mask": attention_mask}


def embedded_language_batch(step: int) -> dict[str, Tensor]:
    """Embeddings in place of tokens: a text model's only differentiable input."""
    return {"inputs_embeds": torch.randn(2, 8, WIDTH, requires_grad=True), "labels": tokens(8)}


def translation_batch(step: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(8), "labels": tokens(6)}


def speech_batch(step: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 8, 32, requires_grad=True), "labels": tokens(6)}


def photo_batch(step: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16, requires_grad=True), "labels": torch.randint(5, (2,))}


def bert() -> nn.Module:
    config = transformers.BertConfig(**TEXT_SIZES, intermediate_size=32, max_position_embeddings=256)
    return transformers.BertForMaskedLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=256, use_cache=False, **SPECIAL_TOKENS
    )
    model = transformers.GPT2LMHeadModel(config)
    # If unset, the forward logs its fallback loss; Dynamo cannot trace the logger.
    model.loss_type = "ForCausalLM"
    return model


def llama() -> nn.Module:
    sizes = {"intermediate_size": 32, "num_key_value_heads": 1, "max_position_embeddings": 256}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT_SIZES, **sizes, use_cache=False))


def mamba() -> nn.Module:
    """The selective scan runs as a loop over the sequence, which the trace unrolls."""
    sizes = {"hidden_size": WIDTH, "state_size": 4, "num_hidden_layers": 1, "time_step_rank": 4}
    config = transformers.MambaConfig(vocab_size=VOCABULARY, **sizes, use_cache=False, **SPECIAL_TOKENS)
    return transformers.MambaForCausalLM(config)


def qwen_moe() -> nn.Module:
    """Four experts, two a token, with the router's balancing loss.

    `batched_mm` gathers each token's expert weights, so that no shape depends on the routing and the graph is whole.
    """
    sizes = {"moe_intermediate_size": 16, "num_key_value_heads": 1, "head_dim": 8}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    config = transformers.Qwen3MoeConfig(
        **TEXT_SIZES, **sizes, **experts, experts_implementation="batched_mm", use_cache=False
    )
    model = transformers.Qwen3MoeForCausalLM(config)
    # The first call installs the hooks that record the router's logits, under a lock that Dynamo cannot trace.
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long))
    return model


def t5() -> nn.Module:
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=VOCABULARY, **sizes, decoder_start_token_id=0, use_cache=False)
    return transformers.T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=5)
    # If unset, the first forward derives it from the labels and writes it here, and the second call recompiles.
    config.problem_type = "single_label_classification"
    return transformers.ViTForImageClassification(config)


def whisper() -> nn.Module:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"d_model": WIDTH, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8}
    lengths = {"max_source_positions": 16, "max_target_positions": 16}
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, **layers, **sizes, **lengths, **SPECIAL_TOKENS, decoder_start_token_id=1, use_cache=False
    )
    return transformers.WhisperForConditionalGeneration(config)
