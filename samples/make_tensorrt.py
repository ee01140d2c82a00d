r"""Make the graphs of models whose latencies under TensorRT 7.2 to 10 were published, without their weights.

    pip install -e . torch torchvision timm==1.0.31 transformers ultralytics==8.3.100
    pip install tensorflow-cpu==2.21.0 tf_keras==2.21.0 tf2onnx==1.17.0
    pip install --no-deps mmengine==0.10.7 mmcv-lite==2.0.1 mmdet==3.1.0 mmyolo==0.6.0 \
        mmsegmentation==1.2.2 mmocr==1.0.1
    python samples/make_tensorrt.py DIR [NAME ...]

Writes DIR/NAME.onnx.gz, at the batch and the size that were measured. Each package is imported for its own models only,
and a model whose package is not there is left out with a line that says so. The packages of OpenMMLab also need addict,
yapf, termcolor, pycocotools, shapely, terminaltables, prettytable, platformdirs, ftfy, pyclipper, rapidfuzz, lmdb,
imgaug and scikit-image. NOT_MADE says what is left out.
"""

import argparse
import gzip
import importlib
import io
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onnxperf.graph.skeleton import skeleton
from onnxperf.lab.datasets.sources.tensorrt import recent_file

NOT_MADE = {
    "mmdet": "non-maximum suppression is in the graph, by operators of MMDeploy's own",
    "TensorRT w/ plugin": "DeBERTa's attention is one operator of NVIDIA's own there",
}
Build = Callable[[], bytes]
Row = tuple[str, str, str, Build]  # model, batch and shape as the table of latencies has them


def exported(model: nn.Module, opset: int, *inputs: Any) -> bytes:
    """A module as the exporter that traces writes it; no two weights are equal, as it merges equal ones."""
    torch.manual_seed(0)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.1, 1)
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), inputs, file, opset_version=opset, dynamo=False)
    return file.getvalue()


def image(batch: int, height: int, width: int | None = None) -> torch.Tensor:
    """A batch of images."""
    return torch.zeros(batch, 3, height, width or height)


def ultra(name: str, side: int, classes: int | None = None) -> bytes:
    """A YOLO of Ultralytics as it exports one for an engine: boxes decoded, non-maximum suppression outside."""
    os.environ.update(YOLO_OFFLINE="true", YOLO_VERBOSE="false", YOLO_AUTOINSTALL="false")
    from ultralytics.nn import modules, tasks

    kinds = {
        "seg": tasks.SegmentationModel,
        "pose": tasks.PoseModel,
        "obb": tasks.OBBModel,
        "cls": tasks.ClassificationModel,
    }
    kind = next((k for suffix, k in kinds.items() if f"-{suffix}" in name), tasks.DetectionModel)
    model = kind(f"{name}.yaml", nc=classes, verbose=False)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.uniform_(0.1, 1)
    model = model.eval().fuse(verbose=False)
    for m in model.modules():
        if isinstance(m, (modules.Detect, modules.Classify)):
            m.export, m.format = True, "engine"
        elif isinstance(m, modules.C2f):
            m.forward = m.forward_split
    with torch.no_grad():
        model(image(1, side))  # the first run makes the anchors
    return exported(model, 17, image(1, side))


def ultralytics() -> Iterable[Row]:
    """YOLOv8, YOLOv5u and YOLO11, by model, batch and shape."""
    tasks = (("", 640, None), ("-seg", 640, None), ("-cls", 224, None), ("-pose", 640, None), ("-obb", 1024, 15))
    for size in "nsmlx":
        for suffix, side, classes in tasks:
            yield f"YOLOv8{size}{suffix}", "1", str(side), partial(ultra, f"yolov8{size}{suffix}", side, classes)
            yield f"YOLO11{size}{suffix}", "1", str(side), partial(ultra, f"yolo11{size}{suffix}", side, classes)
        yield f"YOLO11{size}", "1", "3x640x640", partial(ultra, f"yolo11{size}", 640)
        for suffix, side in (("", 640), ("6", 1280)):
            name = f"yolov5{size}{suffix}"
            yield f"{name}u.pt", "1", f"{name}.yaml", partial(ultra, name, side)
    yield "YOLOv8x-pose-p6", "1", "1280", partial(ultra, "yolov8x-pose-p6", 1280)


def applied(name: str, side: int) -> bytes:
    """A classifier of Keras 2, channels last, by tf2onnx. Keras 3 has other operators for normalisation."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    import numpy as np
    import tensorflow as tf
    import tf2onnx
    import tf_keras

    tf_keras.backend.clear_session()
    model = getattr(tf_keras.applications, name)(weights=None)
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.1, 1, w.shape).astype(np.float32) for w in model.get_weights()])
    spec = tf.TensorSpec((1, side, side, 3), tf.float32, name="image")
    return bytes(tf2onnx.convert.from_keras(model, input_signature=[spec], opset=13)[0].SerializeToString())


def nvidia_keras() -> Iterable[Row]:
    """The classifiers that NVIDIA quantised with its toolkit for TensorFlow. EfficientNet-B3 takes images of 300."""
    names = {
        "ResNet50-v1": "ResNet50", "ResNet50-v2": "ResNet50V2",
        "ResNet101-v1": "ResNet101", "ResNet101-v2": "ResNet101V2",
        "MobileNet-v1": "MobileNet", "MobileNet-v2": "MobileNetV2", "EfficientNet-B0": "EfficientNetB0",
        "EfficientNet-B3": "EfficientNetB3", "Inception-v3": "InceptionV3",
    }  # fmt: skip
    sides = {"EfficientNet-B3": 300, "Inception-v3": 299}
    for row, name in names.items():
        yield row, "1", "224 (Inception 299)", partial(applied, name, sides.get(row, 224))


class Upsampled(nn.Module):
    """Stages of a backbone, each narrowed by a convolution and resized to one size, added up; layers follow."""

    def __init__(
        self, stem: nn.Module, stages: list[nn.Module], widths: tuple[int, ...], size: Any, after: list[nn.Module]
    ):
        super().__init__()
        from timm.models.efficientvit_mit import ConvNormAct

        self.stem, self.stages, self.size = stem, nn.ModuleList(stages), size
        self.narrow = nn.ModuleList(ConvNormAct(w, after[0].shortcut_width, 1, act_layer=None) for w in widths)
        self.after = nn.Sequential(*after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        parts = [x := stage(x) for stage in self.stages][-len(self.narrow) :]
        narrow = [conv(part) for conv, part in zip(self.narrow, parts, strict=True)][::-1]
        sized = [self.resized(part) for part in narrow]
        return self.after(sum(sized[1:], sized[0]))

    def resized(self, x: torch.Tensor) -> torch.Tensor:
        if tuple(x.shape[-2:]) == self.size:
            return x
        return nn.functional.interpolate(x, self.size, mode="bicubic", align_corners=False)


class Normed(nn.Module):
    """Layer normalisation of channels, written out."""

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width, 1, 1)), nn.Parameter(torch.zeros(width, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - torch.mean(x, dim=1, keepdim=True)
        return x / torch.sqrt(torch.square(x).mean(dim=1, keepdim=True) + 1e-6) * self.weight + self.bias


def efficientvit(
    batch: int, side: tuple[int, int], depths: tuple[int, ...], width: int, depth: int, expand: int,
    classes: int | None = None, wide: int | None = None,
) -> bytes:  # fmt: skip
    """EfficientViT-L (four stages) or -XL (five) with a head that segments, or the neck of an image encoder."""
    from timm.models import efficientvit_mit as mit

    norm, act = nn.BatchNorm2d, mit.GELUTanh
    xl = len(depths) == 6
    widths = (32, 64, 128, 256, 512, 1024)[: len(depths)]
    kinds = (
        [("fused", 4)] * 3 + [("attention", 4), ("attention", 6)]
        if xl
        else [("fused", 4)] * 2 + [("default", 4), ("attention", 6)]
    )
    stages: list[nn.Module] = []
    for cin, cout, count, (kind, ratio) in zip(widths[:-1], widths[1:], depths[1:], kinds, strict=True):
        fewer, block = kind != "fused", "fused" if kind == "fused" else "default"
        local = partial(mit.build_local_block, norm_layer=norm, act_layer=act, fewer_norm=fewer, block_type=block)
        layers: list[nn.Module] = [mit.ResidualBlock(local(cin, cout, 2, 4 * ratio))]
        for _ in range(count):
            if kind == "attention":
                layers.append(
                    mit.EfficientVitBlock(cout, head_dim=32, expand_ratio=ratio, norm_layer=norm, act_layer=act)
                )
                if xl:
                    layers[-1].context_module.main = mit.LiteMLA(cout, cout, dim=32, scales=(3,))
            else:
                layers.append(mit.ResidualBlock(local(cout, cout, 1, ratio), nn.Identity()))
        stages.append(nn.Sequential(*layers))
    after: list[nn.Module] = [
        mit.ResidualBlock(
            mit.FusedMBConv(width, width, expand_ratio=expand, norm_layer=norm, act_layer=(act, None)), nn.Identity()
        )
        for _ in range(depth)
    ]
    after[0].shortcut_width = width
    if wide:
        after.append(mit.ConvNormAct(width, width * wide, 1, act_layer=act))
    after.append(nn.Conv2d(width * (wide or 1), classes or 256, 1))
    if classes is None:
        after.append(Normed(256))
    size = (side[0] // 8, side[1] // 8) if classes else (64, 64)
    stem = mit.Stem(3, 32, depths[0], norm, act, block_type="large")
    model = Upsampled(stem, stages, widths[-3:], size, after)
    return exported(model, 11, image(batch, *side))


def traced(
    build: Callable[[], nn.Module], height: int, opset: int = 11, width: int | None = None, channels: int = 3
) -> bytes:
    """A model of one image."""
    return exported(build(), opset, image(1, height, width)[:, :channels])


def of_timm(name: str) -> nn.Module:
    """A model as timm has it."""
    import timm

    return timm.create_model(name, pretrained=False)


def of_torchvision(name: str) -> nn.Module:
    """A model as torchvision has it."""
    import torchvision

    model: nn.Module = getattr(torchvision.models, name)(weights=None)
    return model


def mit_han_lab() -> Iterable[Row]:
    """EfficientViT, and EfficientNetV2 beside it. The batch of classifiers is not published."""
    for name, build, sides in (
        ("EfficientNetV2-S", partial(of_torchvision, "efficientnet_v2_s"), (384,)),
        ("EfficientNetV2-M", partial(of_torchvision, "efficientnet_v2_m"), (480,)),
        ("EfficientViT-L1", partial(of_timm, "efficientvit_l1"), (224,)),
        ("EfficientViT-L2", partial(of_timm, "efficientvit_l2"), (224, 256, 288, 320, 384)),
        ("EfficientViT-L3", partial(of_timm, "efficientvit_l3"), (224, 256, 288, 320, 384)),
    ):
        for side in sides:
            yield f"{name} cls", "?", f"3x{side}x{side}", partial(traced, build, side)
    l0, l1, l2 = (1, 1, 1, 4, 4), (1, 1, 1, 6, 6), (1, 2, 2, 8, 8)
    for size, depths, city in (("L1", l1, 3), ("L2", l2, 5)):
        name = f"EfficientViT-{size} seg"
        yield name, "1", "3x1024x2048", partial(efficientvit, 1, (1024, 2048), depths, 256, city, 1, 19)
        yield name, "16", "3x512x512", partial(efficientvit, 16, (512, 512), depths, 128, 3, 4, 150, 8)
    for size, depths, neck in (("L0", l0, 4), ("L1", l1, 8), ("L2", l2, 12)):
        name = f"EfficientViT-SAM-{size} encoder"
        yield name, "16", "3x512x512", partial(efficientvit, 16, (512, 512), depths, 256, neck, 1)
    for size, depths, neck in (("XL0", (0, 1, 1, 2, 3, 3), 6), ("XL1", (1, 2, 2, 4, 6, 6), 12)):
        name = f"EfficientViT-SAM-{size} encoder"
        # traced with one image, for the time that it takes: a prediction sets the batch
        yield name, "16", "3x1024x1024", partial(efficientvit, 1, (1024, 1024), depths, 256, neck, 4)


def mmpretrain() -> Iterable[Row]:
    """The classifiers of MMDeploy, with the softmax that it exports."""
    for row, build in (
        ("ResNet", partial(of_torchvision, "resnet50")), ("ResNeXt", partial(of_torchvision, "resnext50_32x4d")),
        ("SE-ResNet", partial(of_timm, "seresnet50")), ("ShuffleNetV2", partial(of_torchvision, "shufflenet_v2_x1_0")),
    ):  # fmt: skip
        with_softmax = partial(lambda build: nn.Sequential(build(), nn.Softmax(1)), build)
        yield f"mmpretrain {row}", "1", "224x224", partial(traced, with_softmax, 224)


def deberta(length: int, layers: int, heads: int, v3: bool) -> bytes:
    """DeBERTa, 64 channels a head: version 3, or as NVIDIA's demo sets version 2."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    hidden = 64 * heads
    own: dict[str, Any] = {"vocab_size": 128203, "max_position_embeddings": length, "max_relative_positions": 256}
    if v3:
        own = {"vocab_size": 128100, "position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
        own |= {"position_biased_input": False}
    config = DebertaV2Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden,
        type_vocab_size=0, relative_attention=True, pos_att_type=["p2c", "c2p"], pooler_hidden_size=hidden,
        return_dict=False, **own,
    )  # fmt: skip
    tokens = torch.ones(1, length, dtype=torch.int64)
    return exported(DebertaV2ForSequenceClassification(config), 13, tokens, tokens)


def nvidia_deberta() -> Iterable[Row]:
    """The models of NVIDIA's demo of DeBERTa, without its plugin."""
    for length in (512, 1024, 2048):
        row = f"deberta-v2 (config in README, like v3-xsmall) seq {length}"
        yield row, "1", f"seq={length}", partial(deberta, length, 12, 6, False)
    yield "deberta-v3-xsmall", "1", "seq=512", partial(deberta, 512, 12, 6, True)
    yield "deberta-v3-large", "1", "seq=512", partial(deberta, 512, 24, 16, True)


class Absent(types.ModuleType):
    """A module that is not there, with any name in it."""

    def __getattr__(self, name: str) -> "Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def openmm(package: str, config: str, prepare: Callable[[nn.Module], nn.Module] = lambda model: model) -> nn.Module:
    """A model of OpenMMLab from the configuration in its package, and what `prepare` makes of it.

    The compiled operators of mmcv are not needed.
    """
    sys.modules.setdefault("mmcv._ext", Absent("mmcv._ext"))
    from mmengine.config import Config
    from mmengine.registry import MODELS as REGISTRY
    from mmengine.registry import init_default_scope

    module = importlib.import_module(package)
    importlib.import_module(f"{package}.models")
    init_default_scope(package)
    settings = Config.fromfile(Path(module.__file__ or "").parent / ".mim" / "configs" / config).model
    for part in (settings, settings.get("backbone", {})):
        part.pop("init_cfg", None)
        part.pop("pretrained", None)
    return prepare(REGISTRY.build(settings).eval())


def deployed(model: nn.Module) -> nn.Module:
    """A detector with the branches of its blocks merged, which gives the outputs of its head."""
    for part in model.modules():
        if hasattr(part, "switch_to_deploy"):
            part.switch_to_deploy()
    model.forward = model._forward
    return model


def mmyolo() -> Iterable[Row]:
    """MMYOLO's detectors, without the decoding of boxes and non-maximum suppression."""
    names = {
        **{f"YOLOv5-{s}": f"yolov5/yolov5_{s}-v61_syncbn_fast_8xb16-300e_coco.py" for s in "nsml"},
        **{f"YOLOv6-v2.0-{s}": f"yolov6/yolov6_{s[0]}_syncbn_fast_8xb32-{e}e_coco.py" for s, e in
           (("n", 400), ("tiny", 400), ("s", 400), ("m", 300), ("l", 300))},
        **{f"YOLOv7-{s}": f"yolov7/yolov7_{s}_syncbn_fast_8x16b-300e_coco.py" for s in ("tiny", "l", "x")},
        **{f"YOLOv8-{s}": f"yolov8/yolov8_{s}_syncbn_fast_8xb16-500e_coco.py" for s in "nsmlx"},
        **{f"RTMDet-{s}": f"rtmdet/rtmdet_{s}_syncbn_fast_8xb32-300e_coco.py" for s in ("tiny", *"smlx")},
        **{f"YOLOX-{s}": f"yolox/yolox_{s}_fast_8xb8-300e_coco.py" for s in ("tiny", *"smlx")},
        **{f"PPYOLOE+ -{s}": f"ppyoloe/ppyoloe_plus_{s}_fast_8xb8-80e_coco.py" for s in "smlx"},
    }  # fmt: skip
    for row, config in names.items():
        side = 416 if row == "YOLOX-tiny" else 640
        yield row, "1", f"3x{side}x{side}", partial(traced, partial(openmm, "mmyolo", config, deployed), side)


class Pool(nn.Module):
    """Pooling to a fixed size, with windows of one size as MMDeploy has them."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        strides = [int(n) // self.size for n in x.shape[-2:]]
        windows = [int(n) - (self.size - 1) * step for n, step in zip(x.shape[-2:], strides, strict=True)]
        return nn.functional.avg_pool2d(x, windows, strides)


class Segmented(nn.Module):
    """A segmenter of MMSegmentation as MMDeploy exports it: the class of each pixel."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.backbone, self.head = model.backbone, model.decode_head
        for parent in list(model.modules()):
            for name, part in parent.named_children():
                if isinstance(part, nn.AdaptiveAvgPool2d) and part.output_size != 1:
                    setattr(parent, name, Pool(part.output_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.backbone(x))
        resized = nn.functional.interpolate(logits, x.shape[-2:], mode="bilinear", align_corners=False)
        return resized.argmax(1, keepdim=True)


class Read(nn.Module):
    """DBNet or CRNN of MMOCR: the map of probabilities of text, or those of characters."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self.model, "det_head"):
            return self.model.det_head(self.model.neck(self.model.backbone(x)), mode="predict")
        return self.model.decoder.forward_test(self.model.backbone(x), None)


class Dense(nn.Module):
    """Five convolutions, each over all outputs before it, and a residual: the block of ESRGAN."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(64 + 32 * i, 32 if i < 4 else 64, 3, 1, 1) for i in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for layer in self.layers[:4]:
            parts.append(nn.functional.leaky_relu(layer(torch.cat(parts, 1)), 0.2))
        return self.layers[4](torch.cat(parts, 1)) * 0.2 + x


class Residual(nn.Sequential):
    """Layers whose output, times `scale`, is added to their input."""

    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale + x if self.scale != 1 else super().forward(x) + x


class Triple(Residual):
    scale = 0.2


def esrgan() -> nn.Module:
    """ESRGAN's generator, four times the size: 23 blocks of 64 channels."""
    conv = partial(nn.Conv2d, 64, kernel_size=3, padding=1)
    body = Residual(*(Triple(Dense(), Dense(), Dense()) for _ in range(23)), conv(out_channels=64))
    larger = [
        part for _ in range(2) for part in (nn.Upsample(scale_factor=2), conv(out_channels=64), nn.LeakyReLU(0.2))
    ]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), body, *larger, conv(out_channels=64), nn.LeakyReLU(0.2), conv(out_channels=3)
    )


def srcnn() -> nn.Module:
    """SRCNN, four times the size: convolutions of 9, 1 and 5."""
    relu = nn.ReLU()
    first, second, third = nn.Conv2d(3, 64, 9, 1, 4), nn.Conv2d(64, 32, 1), nn.Conv2d(32, 3, 5, 1, 2)
    return nn.Sequential(nn.Upsample(scale_factor=4, mode="bicubic"), first, relu, second, relu, third)


def mmdeploy() -> Iterable[Row]:
    """MMDeploy's segmenters and models that read text or enlarge an image."""
    for row, name, shape in (
        ("FCN", "fcn", "512x1024"), ("PSPNet", "pspnet", "1x3x512x1024"), ("DeepLabV3", "deeplabv3", "512x1024"),
        ("DeepLabV3+", "deeplabv3plus", "512x1024"),
    ):  # fmt: skip
        config = f"{name}/{name}_r50-d8_4xb2-40k_cityscapes-512x1024.py"
        yield f"mmseg {row}", "1", shape, partial(traced, partial(openmm, "mmseg", config, Segmented), 512, 11, 1024)
    for row, name, channels, side in (
        ("DBNet", "textdet/dbnet/dbnet_resnet18_fpnc_1200e_icdar2015.py", 3, 640),
        ("CRNN", "textrecog/crnn/crnn_mini-vgg_5e_mj.py", 1, 32),
    ):
        build = partial(openmm, "mmocr", name, Read)
        shape = f"{side}x{side}"
        yield f"mmocr {row}", "1", shape, partial(traced, build, side, 11, side, channels)
    yield "mmagic ESRGAN", "1", "32x32", partial(traced, esrgan, 32)
    yield "mmagic SRCNN", "1", "32x32", partial(traced, srcnn, 32)


#: By model, batch and shape, as the table of the published latencies has them.
MODELS: dict[tuple[str, str, str], Build] = {
    (m, b, s): build
    for m, b, s, build in (
        *ultralytics(),
        *nvidia_keras(),
        *mit_han_lab(),
        *mmpretrain(),
        *nvidia_deberta(),
        *mmyolo(),
        *mmdeploy(),
    )
}


def make(key: tuple[str, str, str]) -> bytes:
    """The gzipped ONNX file of a model."""
    return gzip.compress(skeleton(MODELS[key]()), 9, mtime=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, metavar="DIR")
    parser.add_argument("name", nargs="*", metavar="NAME", help="of the file; all by default")
    given = parser.parse_args()
    files = {recent_file(*key).removeprefix("graphs/"): key for key in MODELS}
    for name in given.name or files:
        try:
            (given.dir / name).write_bytes(make(files[name]))
        except ModuleNotFoundError as e:
            print(f"{name}: needs the package {e.name}, which is not installed")
