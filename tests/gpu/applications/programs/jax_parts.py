# SPDX-License-Identifier: Apache-2.0
"""JAX in parts, each printing what it computed: `python jax_parts.py NAME`."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
from shown import show


def key(n: int) -> Any:
    """A source of random numbers."""
    return jax.random.PRNGKey(n)


def elementwise() -> list[Any]:
    """Fused kernels, reductions, sorting, types."""
    x = jax.random.normal(key(0), (1000, 257))
    f = jax.jit(lambda v: jnp.tanh(v) * jnp.exp(-v * v) + jnp.where(v > 0, v, 0.5))
    y = f(x)
    return [y, y.sum(0), jnp.sort(y, axis=1), jnp.argmax(y, 1), y.astype(jnp.bfloat16)]


def products() -> list[Any]:
    """Matrix products by cuBLAS, batched and in half precision."""
    a = jax.random.normal(key(1), (8, 128, 96))
    b = jax.random.normal(key(2), (8, 96, 64))
    half = jnp.matmul(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))
    return [jnp.matmul(a, b), half.astype(jnp.float32), jnp.einsum("bij,bkj->ik", a, a)]


def gradients() -> list[Any]:
    """A small network's steps of training."""
    w = {"a": jax.random.normal(key(3), (32, 64)) * 0.1, "b": jax.random.normal(key(4), (64, 1))}
    x = jax.random.normal(key(5), (256, 32))
    y = jnp.sin(x.sum(1, keepdims=True))

    @jax.jit
    def step(w: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

        value, g = jax.value_and_grad(loss)(w)
        return value, jax.tree.map(lambda p, d: p - 0.05 * d, w, g)

    losses = []
    for _ in range(20):
        value, w = step(w)
        losses.append(value)
    return [jnp.stack(losses), w["a"]]


def convolution() -> list[Any]:
    """cuDNN's, forward and backward."""
    x = jax.random.normal(key(6), (4, 16, 32, 32))
    w = jax.random.normal(key(7), (24, 16, 3, 3)) * 0.1

    def f(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")

    return [f(x, w), *jax.grad(lambda x, w: (f(x, w) ** 2).mean(), (0, 1))(x, w)]


def loops() -> list[Any]:
    """Control flow on the GPU."""
    z = jax.lax.fori_loop(0, 100, lambda i, c: c * 0.99 + i, jnp.ones(64))
    carry, ys = jax.lax.scan(
        lambda c, x: (c + x, c * x), jnp.zeros(8), jnp.arange(80.0).reshape(10, 8)
    )
    n = jax.lax.while_loop(lambda v: v[0] < 1000.0, lambda v: (v[0] * 1.5, v[1] + 1), (1.0, 0))
    return [z, carry, ys, jnp.asarray(n[1]), jax.vmap(lambda v: jnp.cumsum(v))(ys)]


def linear() -> list[Any]:
    """cuSOLVER's decompositions; what is unique of them."""
    a = jax.random.normal(key(8), (4, 48, 48))
    s = a @ a.transpose(0, 2, 1) + 48 * jnp.eye(48)
    return [
        jnp.linalg.cholesky(s),
        jnp.linalg.eigvalsh(s),
        jnp.linalg.svd(a, compute_uv=False),
        jnp.linalg.solve(s, a),
        jnp.linalg.slogdet(s)[1],
    ]


def fft() -> list[Any]:
    """cuFFT's."""
    x = jax.random.normal(key(9), (8, 256))
    return [jnp.fft.fft(x).real, jnp.fft.rfft(x).imag, jnp.fft.ifft2(jnp.fft.fft2(x)).real]


def random() -> list[Any]:
    """Random numbers are the same everywhere."""
    return [jax.random.uniform(key(10), (1000,)), jax.random.permutation(key(11), 1000)]


PARTS = {
    f.__name__: f
    for f in (elementwise, products, gradients, convolution, loops, linear, fft, random)
}


def main() -> None:
    """A line for each array."""
    print(jax.devices()[0].platform)
    for array in PARTS[sys.argv[1]]():
        show(array)


if __name__ == "__main__":
    main()
