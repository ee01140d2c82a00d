"""Attention and masks of transformers as they were when others measured these models, and states of the past."""

from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import nn


def gpt2(width: int, heads: int, layers: int, positions: int) -> hf.PreTrainedModel:
    """GPT-2's code with `gpt2_attention`."""
    hf.AttentionInterface.register("gpt2-before", gpt2_attention)
    hf.AttentionMaskInterface.register("gpt2-before", partial(hf.masking_utils.sdpa_mask, allow_is_causal_skip=False))
    size = {"n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": positions}
    return hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, attn_implementation="gpt2-before", **size))


def gpt2_attention(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, **_: Any
) -> tuple[torch.Tensor, None]:
    """Eager attention as GPT-2 had it in transformers 4.38: quotient, choice by mask, softmax."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    if mask is not None:  # a single query sees all
        scores = torch.where(mask, scores, torch.tensor(torch.finfo(scores.dtype).min))
    return torch.matmul(_dropped(module, nn.functional.softmax(scores, dim=-1)), v).transpose(1, 2).contiguous(), None


def opt() -> hf.PreTrainedModel:
    """OPT-1.3B with `opt_attention`."""
    hf.AttentionInterface.register("opt-before", opt_attention)
    hf.AttentionMaskInterface.register("opt-before", hf.masking_utils.eager_mask)
    size = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192}
    config = hf.OPTConfig(**size, word_embed_proj_dim=2048, use_cache=False, attn_implementation="opt-before")
    return hf.OPTForCausalLM(config)


def opt_attention(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, None]:
    """Eager attention as OPT had it in transformers 4.38: heads folded into the batch, masked scores kept finite."""
    batch, heads, length, width = q.shape
    q, k, v = (t.reshape(batch * heads, length, width) for t in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, length, length) + mask
    scores = torch.max(scores, torch.tensor(torch.finfo(scores.dtype).min))
    shares = nn.functional.softmax(scores.view(batch * heads, length, length), dim=-1)
    return torch.bmm(shares, v).view(batch, heads, length, width).transpose(1, 2), None


def encoder(model: str, config: str, **size: Any) -> hf.PreTrainedModel:
    """An encoder with `bert_attention` and `bert_mask`."""
    hf.AttentionInterface.register("bert-before", bert_attention)
    hf.AttentionMaskInterface.register("bert-before", bert_mask)
    return getattr(hf, model)(getattr(hf, config)(**size, attn_implementation="bert-before"))


def bert_attention(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, **_: Any
) -> tuple[torch.Tensor, None]:
    """Eager attention as BERT had it until transformers 4.4x: quotient, mask added, softmax."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / int(q.shape[-1]) ** 0.5
    scores = scores if mask is None else scores + mask
    return torch.matmul(_dropped(module, nn.functional.softmax(scores, dim=-1)), v).transpose(1, 2).contiguous(), None


def _dropped(module: nn.Module, shares: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(shares, 0.1) if module.training else shares


def bert_mask(
    *_: Any, attention_mask: torch.Tensor | None = None, dtype: torch.dtype = torch.float32, **__: Any
) -> torch.Tensor | None:
    """The mask as it was made then: 0 for tokens, -10000 for padding."""
    return None if attention_mask is None else (1.0 - attention_mask[:, None, None, :].to(dtype)) * -10000.0


class States(hf.DynamicCache):
    """Keys and values of each layer in one tensor [2, batch, heads, length, size], as GPT-2's code had them."""

    def __init__(self, past: list[torch.Tensor]) -> None:
        super().__init__()
        self.past, self.present = past, list[torch.Tensor]()

    def update(self, k: torch.Tensor, v: torch.Tensor, layer_idx: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        past = self.past[layer_idx]
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        self.present.append(torch.stack((k, v)))
        return k, v

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.past[layer_idx].shape[3]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


class WithPast(nn.Module):
    """GPT-2 that continues, with a state of each layer as inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = gpt2(768, 12, 12, 1024)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, past: dict[str, torch.Tensor]) -> Any:
        states = States(list(past.values()))
        found = self.model(input_ids, position_ids=position_ids, past_key_values=states, use_cache=True)
        return (found.logits, *states.present)
