"""Ten lines to start from. Run them where the folder `samples` is."""

import onnxperf

p = onnxperf.predict("samples/resnet50.onnx", gpu="l4")
print(f"{p.seconds * 1e3:.2f} ms for one image")

for kernel in sorted(p.kernels, key=lambda kernel: kernel.seconds, reverse=True)[:5]:
    print(f"{kernel.seconds * 1e6:8.1f} us  {kernel.bound_by!s:8}  {kernel.name}")

print(p.to_dict()["latency"])  # plain numbers, strings and lists: json.dumps() takes them
