# SPDX-License-Identifier: Apache-2.0
"""TensorFlow in parts, each printing what it computed: `python tensorflow_parts.py NAME [DEVICE]`.

Nothing is placed on another device than the one that is named, and operations are deterministic.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from shown import show

#: Opened before TensorFlow 2.21 does so, whose own search path for it leaves out where pip has it.
SOLVERS = [
    ctypes.CDLL(str(path))
    for path in Path(tf.__file__).parents[1].glob("nvidia/cusolver/lib/libcusolver.so.*")
]
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "GPU:0"
RNG = np.random.default_rng(7)


def normal(*shape: int) -> Any:
    """Numbers that are the same in each run, on the device."""
    return tf.constant(RNG.normal(size=shape).astype(np.float32))


def elementwise() -> list[Any]:
    """TensorFlow's own kernels, those that were made for each type among them."""
    x = normal(1000, 257)
    y = tf.tanh(x) * tf.exp(-x * x) + tf.where(x > 0, x, 0.5)
    return [y, tf.reduce_sum(y, 0), tf.cumsum(y, 1), tf.argmax(y, 1), tf.cast(y, tf.float16)]


def products() -> list[Any]:
    """Matrix products by cuBLAS, batched and in half precision."""
    a, b = normal(8, 128, 96), normal(8, 96, 64)
    half = tf.matmul(tf.cast(a, tf.bfloat16), tf.cast(b, tf.bfloat16))
    return [tf.matmul(a, b), tf.cast(half, tf.float32), tf.einsum("bij,bkj->ik", a, a)]


def convolutions() -> list[Any]:
    """cuDNN's, forward and backward, and what stands beside them."""
    x, w = normal(4, 32, 32, 16), normal(3, 3, 16, 24) * 0.1
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y = tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME"))
        loss = tf.reduce_mean(tf.nn.max_pool2d(y, 2, 2, "VALID") ** 2)
    normalized = tf.nn.batch_normalization(y, *tf.nn.moments(y, [0, 1, 2]), None, None, 1e-5)
    return [y, normalized, *tape.gradient(loss, [x, w])]


def linear() -> list[Any]:
    """cuSOLVER's decompositions; what is unique of them."""
    a = normal(4, 48, 48)
    s = tf.matmul(a, a, transpose_b=True) + 48 * tf.eye(48)
    return [tf.linalg.cholesky(s), tf.linalg.eigvalsh(s), tf.linalg.solve(s, a), tf.linalg.inv(s)]


def fft() -> list[Any]:
    """cuFFT's."""
    x = normal(8, 256)
    y = tf.signal.fft(tf.cast(x, tf.complex64))
    return [tf.math.real(y), tf.math.imag(tf.signal.rfft(x)), tf.signal.irfft(tf.signal.rfft(x))]


def sorting() -> list[Any]:
    """What CUB does for it."""
    x = normal(50_000)
    found, index = tf.math.top_k(x, 100)
    groups = tf.math.unsorted_segment_max(x, tf.cast(tf.abs(x) * 20, tf.int32), 100)
    return [tf.sort(x), found, index, groups, tf.boolean_mask(x, x > 1)]


def random() -> list[Any]:
    """Random numbers are the same everywhere."""
    seed = tf.constant([3, 5])
    uniform = tf.random.stateless_uniform((1000,), seed)
    return [uniform, tf.random.stateless_normal((1000,), seed)]


def graphs() -> list[Any]:
    """A network's steps of training, traced once."""
    w = [tf.Variable(normal(*shape) * 0.2) for shape in ((32, 64), (64, 1))]
    x = normal(256, 32)
    y = tf.sin(tf.reduce_sum(x, 1, keepdims=True))

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ w[0]) @ w[1] - y) ** 2)
        for variable, slope in zip(w, tape.gradient(loss, w), strict=True):
            variable.assign_sub(0.05 * slope)
        return loss

    return [tf.stack([step() for _ in range(20)]), w[0]]


def training() -> list[Any]:
    """Keras: a small network of convolutions, by `fit` and `predict`."""
    tf.keras.utils.set_random_seed(11)
    images = RNG.normal(size=(256, 16, 16, 3)).astype(np.float32)
    kinds = (images.mean((1, 2, 3)) > 0).astype(np.int32)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            *(layers.Input((16, 16, 3)), layers.Conv2D(16, 3, activation="relu")),
            *(layers.BatchNormalization(), layers.MaxPooling2D(), layers.Flatten()),
            *(layers.Dense(32, activation="relu"), layers.Dropout(0.2), layers.Dense(2)),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    history = model.fit(images, kinds, batch_size=64, epochs=3, verbose=0, shuffle=False)
    return [history.history["loss"], model.predict(images, verbose=0)]


PARTS = {
    f.__name__: f
    for f in (
        *(elementwise, products, convolutions, linear, fft, sorting, random, graphs, training),
    )
}


def main() -> None:
    """A line for each array."""
    tf.config.set_soft_device_placement(False)
    tf.config.experimental.enable_op_determinism()
    print([device.device_type for device in tf.config.list_logical_devices()])
    tf.keras.utils.set_random_seed(3)
    with tf.device(f"/{DEVICE}"):
        for array in PARTS[sys.argv[1]]():
            show(array)


if __name__ == "__main__":
    main()
