"""A torch.nn.Module as it is: nothing is written, and neither weights nor a GPU are needed.

pip install 'onnxperf[torch]'
"""

import torch

import onnxperf
from onnxperf.export import source

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 7, stride=2, padding=3), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
    torch.nn.Conv2d(64, 128, 3, stride=2, padding=1), torch.nn.BatchNorm2d(128), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 1000),
)  # fmt: skip
images = torch.zeros(8, 3, 224, 224)  # only shape and type are read

p = onnxperf.predict(model, images, gpu="t4")
print(f"t4    {p.seconds * 1e3:.3f} ms  ({p.low_seconds * 1e3:.3f} to {p.high_seconds * 1e3:.3f})")

exported, _ = source(model, images)  # for more than one question: exporting takes seconds, a prediction less than one
for gpu in ("l4", "a100"):
    p = onnxperf.predict(exported, gpu=gpu)
    print(f"{gpu:5} {p.seconds * 1e3:.3f} ms  ({p.low_seconds * 1e3:.3f} to {p.high_seconds * 1e3:.3f})")
