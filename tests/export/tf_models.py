"""Models of TensorFlow and Keras that tests export."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class Branches(keras.Model):
    """A subclassed model with two inputs, one of which it can do without, and a layer that training changes."""

    def __init__(self) -> None:
        super().__init__(name="branches")
        self.dense, self.norm = layers.Dense(16), layers.BatchNormalization()

    def call(self, x: Any, y: Any = None, training: bool = False) -> Any:
        if training:
            raise RuntimeError("called for training")
        x = self.norm(self.dense(x), training=training)
        return x if y is None else {"sum": x + self.dense(y)}


@tf.function
def product(q: Any, table: Any = None) -> Any:
    return tf.nn.softmax(q @ tf.ones((8, 8)))


class Lookup(tf.Module):
    """A loop that reads rows of a variable."""

    def __init__(self) -> None:
        super().__init__(name="lookup")
        self.table = tf.Variable(np.ones((1000, 32), np.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, 16), tf.int32, name="ids")])
    def __call__(self, ids: Any) -> Any:
        state = tf.zeros((tf.shape(ids)[0], 32))
        for i in tf.range(16):
            state = tf.tanh(state + tf.gather(self.table, ids[:, i]))
        return {"state": state}


class Table(tf.Module):
    def __init__(self) -> None:
        super().__init__(name="table")
        self.w = tf.Variable(np.ones((128, 256), np.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, 128), name="q")])
    def __call__(self, q: Any) -> Any:
        return {"scores": q @ self.w}
