"""The samples that read and write."""

from typing import Any

import torch
import transformers as hf
from onnxperf.samples.zoo import before, plain
from onnxperf.samples.zoo.sample import Axis, Sample
from torch import nn

BATCH, SEQUENCE = ("batch", 1), ("sequence", 128)
EAGER: dict[str, Any] = {"attn_implementation": "eager"}  # plain MatMul and Softmax, each counted as a bmm
IDS: dict[str, tuple[Axis, ...]] = {"input_ids": (BATCH, SEQUENCE)}
TOKENS = {**IDS, "attention_mask": (BATCH, SEQUENCE)}
TYPED = {**TOKENS, "token_type_ids": (BATCH, SEQUENCE)}
FIXED: dict[str, tuple[Axis, ...]] = dict.fromkeys(TOKENS, (1, 128))
LOGITS = ("logits",)

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
MINI = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1}
LLAMA = {
    "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "max_position_embeddings": 131072, "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
MIXTRAL = {
    "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1792, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, **EAGER))


def llama() -> hf.PreTrainedModel:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, use_cache=False, **EAGER))


class LlamaStep(nn.Module):
    """Llama that continues: keys and values of each layer [batch, heads, length, size] as inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, past: dict[str, torch.Tensor]) -> Any:
        states, tensors = hf.DynamicCache(), list(past.values())
        for i, (keys, values) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
            states.update(keys, values, i)
        found = self.model(input_ids, position_ids=position_ids, past_key_values=states, use_cache=True)
        return (found.logits, *(t for layer in states.layers for t in (layer.keys, layer.values)))


def mixtral() -> hf.PreTrainedModel:
    """Mixtral's code at a small size, its experts as a gathered product: the one form that can be exported."""
    model = hf.MixtralForCausalLM(hf.MixtralConfig(**MIXTRAL, use_cache=False, **EAGER))
    model.set_experts_implementation("batched_mm")
    return model


SAMPLES = {
    "bert-base": Sample(
        "BERT-Base encoder with pooler",
        "`BertModel`",
        lambda: hf.BertModel(hf.BertConfig(**EAGER)),
        {**FIXED, "token_type_ids": (1, 128)},
        ("last_hidden_state", "pooler_output"),
    ),
    "gpt2": Sample("GPT-2 small, prompt, no cache", "`GPT2LMHeadModel`", gpt2, FIXED, LOGITS),
    "gpt2-dynamic": Sample("GPT-2 small, prompt, no cache", "`GPT2LMHeadModel`", gpt2, TOKENS, LOGITS),
    "distilbert-dynamic": Sample(
        "DistilBERT classifier, 2 classes",
        "`DistilBertForSequenceClassification`",
        lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**EAGER)),
        TOKENS,
        LOGITS,
    ),
    "bert-large": Sample(
        "BERT-Large classifier, 2 classes",
        "`BertForSequenceClassification`",
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**LARGE, **EAGER)),
        TOKENS,
        LOGITS,
    ),
    "bert-base-ids": Sample(
        "BERT-Base encoder with pooler, attention of old",
        "`BertModel`",
        lambda: before.encoder("BertModel", "BertConfig"),
        IDS,
        ("last_hidden_state", "pooler_output"),
    ),
    "bert-base-cased": Sample(
        "BERT-Base token classifier, 9 classes, attention of old",
        "`BertForTokenClassification`",
        lambda: before.encoder("BertForTokenClassification", "BertConfig", vocab_size=28996, num_labels=9),
        TYPED,
        LOGITS,
        "old",
    ),
    "bert-large-qa": Sample(
        "BERT-Large, start and end of an answer, attention of old",
        "`BertForQuestionAnswering`",
        lambda: before.encoder("BertForQuestionAnswering", "BertConfig", **LARGE),
        TYPED,
        ("start_logits", "end_logits"),
        "script",
    ),
    "minilm-l6-h384": Sample(
        "MiniLM-L6-H384 classifier, 2 classes, attention of old",
        "`BertForSequenceClassification`",
        lambda: before.encoder("BertForSequenceClassification", "BertConfig", **MINI),
        TYPED,
        LOGITS,
        "old",
    ),
    "roberta-base": Sample(
        "RoBERTa-Base classifier, 3 classes, attention of old",
        "`RobertaForSequenceClassification`",
        lambda: before.encoder("RobertaForSequenceClassification", "RobertaConfig", **ROBERTA, num_labels=3),
        TOKENS,
        LOGITS,
        "old",
    ),
    "roberta-large": Sample(
        "RoBERTa-Large classifier, 3 classes, attention of old",
        "`RobertaForSequenceClassification`",
        lambda: before.encoder("RobertaForSequenceClassification", "RobertaConfig", **ROBERTA, **LARGE, num_labels=3),
        TOKENS,
        LOGITS,
        "old",
    ),
    "distilbert-base": Sample(
        "DistilBERT classifier, 2 classes, attention of old",
        "`DistilBertForSequenceClassification`",
        lambda: before.encoder("DistilBertForSequenceClassification", "DistilBertConfig"),
        TOKENS,
        LOGITS,
        "old",
    ),
    "gpt2-past": Sample(
        "GPT-2 small, the next token after 128",
        "`GPT2LMHeadModel`",
        before.WithPast,
        {
            **dict.fromkeys(("input_ids", "position_ids"), (("batch", 2), 1)),
            **{f"past_{i}": (2, ("batch", 2), 12, ("past", 128), 64) for i in range(12)},
        },
        ("logits", *(f"present_{i}" for i in range(12))),
    ),
    "gpt2-large": Sample(
        "GPT-2 large, prompt, no cache", "`GPT2LMHeadModel`", lambda: before.gpt2(1280, 20, 36, 1024), TOKENS, LOGITS
    ),
    "opt-1.3b": Sample("OPT-1.3B, prompt, no cache", "`OPTForCausalLM`", before.opt, TOKENS, LOGITS),
    "gpt3-xl": Sample(
        "24 layers of 3072 in GPT-2's code, prompt",
        "`GPT2LMHeadModel`",
        lambda: before.gpt2(3072, 24, 24, 2048),
        TOKENS,
        LOGITS,
    ),
    "gpt3-2.7b": Sample(
        "32 layers of 2560 in GPT-2's code, prompt",
        "`GPT2LMHeadModel`",
        lambda: before.gpt2(2560, 32, 32, 2048),
        TOKENS,
        LOGITS,
    ),
    "t5-small": Sample(
        "T5-small, encoder and decoder, no cache",
        "`T5ForConditionalGeneration`",
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(use_cache=False, **EAGER)),
        {**TOKENS, "decoder_input_ids": (BATCH, ("decoder_sequence", 32))},
        ("logits", "encoder_last_hidden_state"),
    ),
    "llama-3.2-1b": Sample("Llama-3.2-1B, prompt, no cache", "`LlamaForCausalLM`", llama, TOKENS, LOGITS),
    "llama-3.2-1b-past": Sample(
        "Llama-3.2-1B, the next token after 1024",
        "`LlamaForCausalLM`",
        LlamaStep,
        {
            **dict.fromkeys(("input_ids", "position_ids"), (("batch", 2), 1)),
            **{
                f"past_key_values.{i}.{part}": (("batch", 2), 8, ("past", 1024), 64)
                for i in range(16)
                for part in ("key", "value")
            },
        },
        ("logits", *(f"present.{i}.{part}" for i in range(16) for part in ("key", "value"))),
    ),
    "mixtral-small": Sample(
        "Mixtral's code, 4 layers of 512, 2 of 8 experts",
        "`MixtralForCausalLM`",
        mixtral,
        dict.fromkeys(TOKENS, (BATCH, ("sequence", 16))),
        LOGITS,
    ),
    "lstm": Sample(
        "LSTM language model, 2 layers of 650",
        "[plain.py](zoo/plain.py), [arXiv:1409.2329](https://arxiv.org/abs/1409.2329)",
        plain.LSTM,
        {"input_ids": (("batch", 2), 35), **dict.fromkeys(("hidden", "cell"), (2, ("batch", 2), 650))},
        ("logits", "last_hidden", "last_cell"),
    ),
}
