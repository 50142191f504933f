# SPDX-License-Identifier: Apache-2.0
"""Functions of NVIDIA's libraries that frameworks seldom call, called by ctypes: for features.py.

PyTorch loads the libraries, natively NVIDIA's and otherwise ours; each is then found by its SONAME.
A call that fails raises, so a function that the node's own library refuses skips the feature.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

FLOAT32, COMPUTE_32F = 0, 68


def library(soname: str) -> Any:
    """The library that PyTorch has loaded."""
    import torch

    torch.zeros(1, device="cuda")
    return ctypes.CDLL(soname)


def check(status: int) -> None:
    """Raise where a library returns an error."""
    if status != 0:
        raise RuntimeError(f"status {status}")


def floats(*values: float) -> Any:
    """An array in host memory."""
    return (c_float * len(values))(*values)


def ints(*values: int) -> Any:
    """An array in host memory."""
    return (c_int * len(values))(*values)


def on_device(*values: float) -> Any:
    """A vector of floats on the GPU."""
    import torch

    return torch.tensor(values, dtype=torch.float32, device="cuda")


def at(tensor: Any) -> c_void_p:
    """Its address."""
    return c_void_p(tensor.data_ptr())


def cublas_legacy() -> None:
    """cuBLAS without handles: scalars by value, results returned, errors asked for afterwards."""
    import torch

    blas = library("libcublas.so.13")
    blas.cublasSdot.restype = c_float
    check(blas.cublasInit())
    a, b, c = on_device(1, 2, 3, 4), on_device(5, 6, 7, 8), on_device(1, 1, 1, 1)
    blas.cublasSgemm(
        c_char(b"N"), c_char(b"t"), 2, 2, 2, c_float(2.0), at(a), 2, at(b), 2,
        c_float(3.0), at(c), 2,
    )  # fmt: skip
    print(blas.cublasGetError(), c.tolist())
    blas.cublasStrmm(
        c_char(b"L"), c_char(b"U"), c_char(b"N"), c_char(b"N"), 2, 2, c_float(1.0), at(a), 2,
        at(b), 2,
    )  # fmt: skip
    torch.cuda.synchronize()
    print(blas.cublasGetError(), b.tolist())
    print(blas.cublasSdot(4, at(a), 1, at(c), 1), blas.cublasIsamax(4, at(c), 1))
    memory = c_void_p()
    print(blas.cublasAlloc(100, 4, byref(memory)), blas.cublasFree(memory))
    print(blas.cublasAlloc(-1, 4, byref(memory)), blas.cublasShutdown())


def cublas_handle() -> tuple[Any, c_void_p]:
    """cuBLAS and a handle."""
    blas = library("libcublas.so.13")
    handle = c_void_p()
    check(blas.cublasCreate_v2(byref(handle)))
    return blas, handle


def cublas_grouped() -> None:
    """cublasGemmGroupedBatchedEx: two groups of products of different sizes; rotations by type."""
    import torch

    blas, handle = cublas_handle()
    sizes = [2, 2, 3]
    matrices = [[torch.arange(n * n, device="cuda").float() + i for n in sizes] for i in range(3)]
    lists = [
        torch.tensor([m.data_ptr() for m in row], dtype=torch.int64, device="cuda")
        for row in matrices
    ]
    dims, none = ints(2, 3), ints(0, 0)
    check(
        blas.cublasGemmGroupedBatchedEx(
            handle, none, none, dims, dims, dims, floats(1, 2), at(lists[0]), FLOAT32, dims,
            at(lists[1]), FLOAT32, dims, floats(0, 1), at(lists[2]), FLOAT32, dims, 2, ints(2, 1),
            COMPUTE_32F,
        )
    )  # fmt: skip
    torch.cuda.synchronize()
    print([m.tolist() for m in matrices[2]])
    a, b, c, s = c_float(3), c_float(4), c_float(), c_float()
    check(
        blas.cublasRotgEx(handle, byref(a), byref(b), FLOAT32, byref(c), byref(s), FLOAT32, FLOAT32)
    )
    print(f"{a.value:.3f} {c.value:.3f} {s.value:.3f}")
    check(blas.cublasDestroy_v2(handle))


def cublaslt_in_place() -> None:
    """A product with descriptors in the program's own memory, as cublasLt.h's inline functions."""
    import torch

    blas, handle = cublas_handle()
    lt = library("libcublasLt.so.13")
    product, layout = (c_uint64 * 32)(), (c_uint64 * 8)()
    check(lt.cublasLtMatmulDescInit_internal(product, c_size_t(256), COMPUTE_32F, FLOAT32))
    check(
        lt.cublasLtMatrixLayoutInit_internal(
            layout, c_size_t(64), FLOAT32, c_uint64(16), c_uint64(16), c_int64(16)
        )
    )
    copy = (c_uint64 * 8)(*layout)
    a = torch.arange(256, device="cuda").float()
    d = torch.zeros(256, device="cuda")
    one, zero = c_float(1), c_float(0)
    check(
        lt.cublasLtMatmul(
            handle, product, byref(one), at(a), layout, at(a), copy, byref(zero), at(d), layout,
            at(d), layout, None, None, c_size_t(0), None,
        )
    )  # fmt: skip
    torch.cuda.synchronize()
    print(d[:4].tolist(), float(d.sum()))
    check(blas.cublasDestroy_v2(handle))


def cufft_xt() -> None:
    """cufftXt over one GPU: a descriptor, a transform in place, the way back."""
    fft = library("libcufft.so.12")
    plan, gpu, work, descriptor = c_int(), ints(0), c_size_t(), c_void_p()
    check(fft.cufftCreate(byref(plan)))
    check(fft.cufftXtSetGPUs(plan, 1, gpu))
    check(fft.cufftMakePlan1d(plan, 64, 0x29, 1, byref(work)))
    check(fft.cufftXtMalloc(plan, byref(descriptor), 2))
    numbers = floats(*[float(i % 5) for i in range(128)])
    check(fft.cufftXtMemcpy(plan, descriptor, numbers, 0))
    check(fft.cufftXtExecDescriptorC2C(plan, descriptor, descriptor, -1))
    there = floats(*[0.0] * 128)
    check(fft.cufftXtMemcpy(plan, there, descriptor, 1))
    check(fft.cufftXtExecDescriptorC2C(plan, descriptor, descriptor, 1))
    back = floats(*[0.0] * 128)
    check(fft.cufftXtMemcpy(plan, back, descriptor, 1))
    away = max(abs(b / 64 - n) for b, n in zip(back, numbers, strict=True))
    print([f"{v:.2f}" for v in there[:6]], away < 1e-5)
    check(fft.cufftXtFree(descriptor))
    check(fft.cufftDestroy(plan))


def curand_host() -> None:
    """A generator in host memory, tables of direction vectors and constants, a distribution."""
    rand = library("libcurand.so.10")
    generator = c_void_p()
    check(rand.curandCreateGeneratorHost(byref(generator), 100))
    check(rand.curandSetPseudoRandomGeneratorSeed(generator, c_uint64(1234)))
    uniform, normal = (c_float * 1000)(), (c_double * 1000)()
    check(rand.curandGenerateUniform(generator, uniform, c_size_t(1000)))
    check(
        rand.curandGenerateNormalDouble(generator, normal, c_size_t(1000), c_double(1), c_double(2))
    )
    print([round(v, 6) for v in uniform[:4]], round(sum(normal), 6))
    check(rand.curandDestroyGenerator(generator))
    words, wide, scramble = POINTER(c_uint32)(), POINTER(c_uint64)(), POINTER(c_uint32)()
    check(rand.curandGetDirectionVectors32(byref(words), 101))
    check(rand.curandGetDirectionVectors64(byref(wide), 104))
    check(rand.curandGetScrambleConstants32(byref(scramble)))
    print(words[:4], sum(words[: 20000 * 32]), sum(wide[: 20000 * 64]), sum(scramble[:20000]))
    distribution = c_void_p()
    check(rand.curandCreatePoissonDistribution(c_double(5), byref(distribution)))
    print(bool(distribution), rand.curandDestroyDistribution(distribution))
