"""A Keras model as it is: nothing is written, and no GPU is needed.

pip install 'onnxperf[tf]'
"""

import keras

import onnxperf

model = keras.Sequential(
    [
        keras.Input((224, 224, 3), name="image"),
        keras.layers.Conv2D(64, 7, strides=2, padding="same", activation="relu"),
        keras.layers.Conv2D(128, 3, strides=2, padding="same", activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1000, activation="softmax"),
    ]
)

p = onnxperf.predict(model, gpu="t4", batch=8)
print(f"{p.seconds * 1e3:.3f} ms  ({p.low_seconds * 1e3:.3f} to {p.high_seconds * 1e3:.3f})")
for kernel in sorted(p.kernels, key=lambda kernel: -kernel.seconds)[:5]:
    print(f"{kernel.seconds * 1e6:8.1f} us  {kernel.op:12} {kernel.name}")
