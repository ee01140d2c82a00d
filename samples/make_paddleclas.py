"""Make the graphs of the models whose latencies under TensorRT PaddleClas published, without their weights.

    pip install -e . torch timm==1.0.31 torchvision
    python samples/make_paddleclas.py DIR [NAME ...]

Writes DIR/NAME.onnx.gz with an open batch. PaddleClas's models are published designs; here timm and torchvision build
them, with PaddleClas's own depths, first layers and activations where these differ. NOT_MADE says what is left out.
"""

import argparse
import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path

import timm
import torch
import torchvision
from timm.models import densenet, mobilenetv3, resnest, resnet
from torch import nn

from onnxperf.export.from_torch import proto

NOT_MADE = {
    "ResNet50_vd_ssld": "ResNet50_vd with other weights: its row is that of ResNet50_vd again",
    "ResNet50_vd_ssld_v2": "ResNet50_vd with other weights: its row is that of ResNet50_vd again",
}
Build = Callable[[], nn.Module]
BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 12, 48, 3)}
VD = {"stem_width": 32, "stem_type": "deep", "avg_down": True}  # three first convolutions; pool before projections


def res(layers: int, groups: int = 1, width: int = 64, vd: bool = False, se: bool = False) -> Build:
    """ResNet 1.5 (stride in the 3x3), ResNeXt, and both with squeeze and excitation."""
    block = resnet.BasicBlock if layers < 50 else resnet.Bottleneck
    more = (VD if vd else {}) | ({"block_args": {"attn_layer": "se"}} if se else {})
    return partial(resnet.ResNet, block, BLOCKS[layers], cardinality=groups, base_width=width, **more)


def resnest50(radix: int, first: bool) -> Build:
    """ResNeSt: `first` has the pool before the split convolution."""
    args = {"radix": radix, "avd": True, "avd_first": first}
    return partial(resnet.ResNet, resnest.ResNestBottleneck, BLOCKS[50], block_args=args, **VD)


def of_timm(name: str) -> Build:
    """A model as timm has it."""
    return partial(timm.create_model, name, pretrained=False)


def dense(growth: int, blocks: tuple[int, ...]) -> Build:
    """DenseNet."""
    return partial(densenet.DenseNet, growth_rate=growth, block_config=blocks)


def layer(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    """Convolution, normalisation, and a ReLU."""
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout), *([nn.ReLU()] if act else []))


def mobilenet_v1(scale: float) -> nn.Sequential:
    """MobileNet, with ReLU as PaddleClas has it."""
    channels = [int(c * scale) for c in (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)]
    strides = (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1)
    layers: list[nn.Module] = [layer(3, channels[0], 3, 2)]
    for cin, cout, stride in zip(channels, channels[1:], strides, strict=False):
        layers += [layer(cin, cin, 3, stride, cin), layer(cin, cout, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 1000))


def mobilenet_v2(scale: float) -> nn.Module:
    """MobileNetV2."""
    return torchvision.models.MobileNetV2(width_mult=scale)


def mobilenet_v3(size: str, scale: float) -> nn.Module:
    """MobileNetV3. PaddleClas's small one has 1280 features, as the large one."""
    made: nn.Module = mobilenetv3._gen_mobilenet_v3(f"mobilenetv3_{size}_100", scale)
    if size == "small":
        made.conv_head = nn.Conv2d(made.conv_head.in_channels, 1280, 1)
        made.classifier = nn.Linear(1280, 1000)
    return made


MODELS: dict[str, tuple[Build, int]] = {  # and the side of the image
    "ResNet18": (res(18), 224), "ResNet50": (res(50), 224), "ResNet152": (res(152), 224),
    "ResNet50_vd": (res(50, vd=True), 224), "ResNet200_vd": (res(200, vd=True), 224),
    "Fix_ResNet50_vd_ssld_v2": (res(50, vd=True), 320),
    **{
        f"ResNeXt{n}_{'vd_' * vd}{g}x4d": (res(n, g, 4, vd), 224)
        for n, g, vd in (
            (50, 32, False), (50, 32, True), (50, 64, False), (50, 64, True), (101, 32, False), (101, 64, False),
            (152, 32, True), (152, 64, True),
        )
    },
    **{f"ResNeXt101_ 32x{w}d_wsl": (res(101, 32, w), 224) for w in (8, 32, 48)},
    "Fix_ResNeXt101_ 32x48d_wsl": (res(101, 32, 48), 320),
    "SE_ResNet50_vd": (res(50, vd=True, se=True), 224),
    "SE_ResNeXt50_32x4d": (res(50, 32, 4, se=True), 224), "SE_ResNeXt101_32x4d": (res(101, 32, 4, se=True), 224),
    "Res2Net50_vd_26w_4s": (of_timm("res2net50d"), 224),
    "ResNeSt50_fast_1s1x64d": (resnest50(1, True), 224), "ResNeSt50": (resnest50(2, False), 224),
    "DenseNet121": (dense(32, (6, 12, 24, 16)), 224), "DenseNet161": (dense(48, (6, 12, 36, 24)), 224),
    "DenseNet169": (dense(32, (6, 12, 32, 32)), 224), "DenseNet264": (dense(32, (6, 12, 64, 48)), 224),
    "DPN92": (of_timm("dpn92"), 224), "DPN98": (of_timm("dpn98"), 224),
    "HRNet_W30_C": (of_timm("hrnet_w30"), 224), "HRNet_W32_C": (of_timm("hrnet_w32"), 224),
    "HRNet_W48_C_ssld": (of_timm("hrnet_w48"), 224), "HRNet_W64_C": (of_timm("hrnet_w64"), 224),
    "Xception41": (of_timm("legacy_xception"), 299), "Xception65_ deeplab": (of_timm("xception65"), 299),
    "InceptionV3": (of_timm("inception_v3"), 299),
    "EfficientNetB4": (of_timm("efficientnet_b4"), 380), "EfficientNetB5": (of_timm("efficientnet_b5"), 456),
    "EfficientNetB6": (of_timm("efficientnet_b6"), 528), "EfficientNetB7": (of_timm("efficientnet_b7"), 600),
    "SqueezeNet1_0": (torchvision.models.squeezenet1_0, 224), "SqueezeNet1_1": (torchvision.models.squeezenet1_1, 224),
    "VGG16": (torchvision.models.vgg16, 224), "DarkNet53": (of_timm("darknet53"), 256),
    "MobileNetV1": (partial(mobilenet_v1, 1.0), 224), "MobileNetV1_x0_75": (partial(mobilenet_v1, 0.75), 224),
    "MobileNetV2": (partial(mobilenet_v2, 1.0), 224),
    **{f"MobileNetV2_x{w}".replace(".", "_"): (partial(mobilenet_v2, w), 224) for w in (0.25, 1.5, 2.0)},
    **{
        f"MobileNetV3_{size}_x{w}".replace(".", "_"): (partial(mobilenet_v3, size, w), 224)
        for size, ws in (("large", (1.25, 1.0, 0.75, 0.5, 0.35)), ("small", (1.25, 0.75, 0.35))) for w in ws
    },
    "ShuffleNetV2_x0_5": (torchvision.models.shufflenet_v2_x0_5, 224),
    "GhostNet_x0_5": (of_timm("ghostnet_050"), 224), "GhostNet_x1_0": (of_timm("ghostnet_100"), 224),
    "GhostNet_x1_3": (of_timm("ghostnet_130"), 224),
}  # fmt: skip


def make(name: str) -> bytes:
    """The gzipped ONNX file of a model, with an open batch; the same bytes every time."""
    build, side = MODELS[name]
    with torch.device("meta"):
        model = build().eval()
    return gzip.compress(proto(model, torch.zeros(2, 3, side, side), open_batch=True).SerializeToString(), 9, mtime=0)


def file_name(name: str) -> str:
    """The name of a model's file: the model's without spaces."""
    return f"{name.replace(' ', '')}.onnx.gz"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, metavar="DIR")
    parser.add_argument("name", nargs="*", metavar="NAME", help="all by default")
    given = parser.parse_args()
    for one in given.name or MODELS:
        (given.dir / file_name(one)).write_bytes(make(one))
