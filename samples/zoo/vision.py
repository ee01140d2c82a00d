"""The samples that see or hear."""

import transformers as hf
from onnxperf.samples.zoo import plain
from onnxperf.samples.zoo.sample import Axis, Sample
from transformers.models.whisper.modeling_whisper import WhisperEncoder

BATCH = ("batch", 1)
EAGER = {"attn_implementation": "eager"}  # plain MatMul and Softmax, each counted as a bmm
WHISPER = {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
OWN = "[plain.py](zoo/plain.py), [arXiv:{0}](https://arxiv.org/abs/{0})"


def image(
    side: int = 224, name: str = "pixel_values", batch: Axis = BATCH, channels: int = 3
) -> dict[str, tuple[Axis, ...]]:
    return {name: (batch, channels, side, side)}


SAMPLES = {
    "resnet50": Sample(
        "ResNet-50 v1.5, 1000 classes",
        "`ResNetForImageClassification`",
        lambda: hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000)),
        image(batch=1),
        ("logits",),
    ),
    "mobilenetv2": Sample(
        "MobileNetV2 1.0, 1000 classes, symmetric padding",
        "`MobileNetV2ForImageClassification`",
        lambda: hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(tf_padding=False, num_labels=1000)),
        image(batch=1),
        ("logits",),
    ),
    "vit-base-16": Sample(
        "ViT-Base, patches of 16, 1000 classes",
        "`ViTForImageClassification`",
        lambda: hf.ViTForImageClassification(hf.ViTConfig(num_labels=1000, **EAGER)),
        image(batch=1),
        ("logits",),
    ),
    "alexnet": Sample(
        "AlexNet in one tower (2014), 1000 classes",
        OWN.format("1404.5997"),
        plain.AlexNet,
        image(name="image"),
        ("logits",),
    ),
    "googlenet": Sample(
        "GoogLeNet with batch normalisation, 1000 classes",
        OWN.format("1409.4842"),
        plain.GoogLeNet,
        image(name="image"),
        ("logits",),
    ),
    "convnext-t": Sample(
        "ConvNeXt-T, 1000 classes",
        "`ConvNextForImageClassification`",
        lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=1000)),
        image(batch=("batch", 2)),
        ("logits",),
    ),
    "swin-t": Sample(
        "Swin-T, 1000 classes",
        "`SwinForImageClassification`",
        lambda: hf.SwinForImageClassification(hf.SwinConfig(num_labels=1000, **EAGER)),
        image(batch=("batch", 2)),
        ("logits",),
    ),
    "unet": Sample(
        "U-Net (2015), 2 classes", OWN.format("1505.04597"), plain.UNet, image(572, "image", channels=1), ("classes",)
    ),
    "yolox-s": Sample(
        "YOLOX-S detector, 80 classes, before NMS",
        OWN.format("2107.08430"),
        plain.YoloxS,
        image(640, "image"),
        ("boxes",),
    ),
    "clip-vit-b-32": Sample(
        "CLIP ViT-B/32, both towers",
        "`CLIPModel`",
        lambda: hf.CLIPModel(hf.CLIPConfig(**EAGER)),
        {**image(), **dict.fromkeys(("input_ids", "attention_mask"), (("texts", 8), 77))},
        ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds"),
    ),
    "whisper-base-encoder": Sample(
        "Whisper-Base's encoder, 30 s of sound",
        "`WhisperEncoder`",
        lambda: WhisperEncoder(hf.WhisperConfig(**WHISPER, **EAGER)),
        {"input_features": (BATCH, 80, 3000)},
        ("last_hidden_state",),
    ),
}
