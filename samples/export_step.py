"""The export step of a training repository: train, hold the model to its budget, and only then write the file.

    pip install 'onnxperf[torch]'
    python export_step.py model.onnx

Where the budget is exceeded it exits with 1, names the operators that the time goes to, and writes nothing.
"""

import sys

import torch

import onnxperf

BUDGET = {"gpu": "t4", "max_ms": 8, "max_gb": 2, "precision": "fp16"}


def train() -> torch.nn.Module:
    """One step of a model that stands for yours."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    return model


def export(model: torch.nn.Module, path: str) -> None:
    example = torch.zeros(1, 3, 32, 32)
    p = onnxperf.check(model, example, **BUDGET)  # raises BudgetExceeded; the model stays in training mode
    print(f"{p.seconds * 1e3:.3f} ms and {p.memory.total_bytes / 1e6:.1f} MB on {BUDGET['gpu']}: within the budget")
    torch.onnx.export(model.eval(), (example,), path, dynamo=True, external_data=False, verbose=False)


if __name__ == "__main__":
    try:
        export(train(), sys.argv[1] if len(sys.argv) > 1 else "model.onnx")
    except onnxperf.BudgetExceeded as e:
        sys.exit(f"over the budget: {e}")
