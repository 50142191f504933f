# SPDX-License-Identifier: Apache-2.0
"""What frameworks lean on, one small program each: prints what must be the same natively and ours.

    python tests/gpu/features.py NAME        # or without a name: the list of names

Every feature prints lines of results with numbers rounded so that no order of summation shows.
run_features.py runs them natively and through Sluice and compares the lines.
"""

from __future__ import annotations

import sys
from typing import Any

from features_libraries import (
    cublas_grouped,
    cublas_legacy,
    cublaslt_in_place,
    cufft_xt,
    curand_host,
)


def digest(value: Any) -> str:
    """Sum and mean of magnitudes, rounded."""
    v = value.detach().double().abs()
    return f"{tuple(value.shape)} {float(v.sum()):.4e} {float(v.mean()):.4e}"


def compile_model() -> None:
    """torch.compile, forward and backward, with a fused reduction."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512),
        torch.nn.GELU(),
        torch.nn.LayerNorm(512),
        torch.nn.Linear(512, 64),
    ).cuda()
    fast = torch.compile(model)
    x = torch.randn(128, 256, device="cuda")
    loss = torch.nn.functional.softmax(fast(x), dim=-1).square().sum()
    loss.backward()
    print(digest(loss), digest(model[0].weight.grad))


def amp() -> None:
    """Automatic mixed precision with a gradient scaler."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    x, y = torch.randn(8, 3, 32, 32, device="cuda"), torch.randint(0, 10, (8,), device="cuda")
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(f"{float(loss):.2f} {scaler.get_scale()}")


def data_loader() -> None:
    """A DataLoader with worker processes and pinned memory, copied without waiting."""
    import torch

    data = torch.utils.data.TensorDataset(torch.arange(4096).float().reshape(512, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=64, num_workers=2, pin_memory=True)
    total = torch.zeros(8, device="cuda")
    for (batch,) in loader:
        assert batch.is_pinned()
        total += batch.cuda(non_blocking=True).sum(0)
    print(total.tolist())


def triton_kernels() -> None:
    """Triton: a vector sum and a softmax."""
    import os
    import tempfile

    os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
    import torch
    from features_triton import add, softmax

    torch.manual_seed(0)
    a, b = torch.randn(100003, device="cuda"), torch.randn(100003, device="cuda")
    print(bool(torch.equal(add(a, b), a + b)))
    x = torch.randn(257, 781, device="cuda")
    print(bool(torch.allclose(softmax(x), torch.softmax(x, -1), atol=1e-6)))


def cuda_graph() -> None:
    """torch.cuda.CUDAGraph of a training step with cuBLAS and cuDNN in it, replayed."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 16 * 16, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(4, 3, 16, 16, device="cuda"), torch.randn(4, 10, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    values = []
    for i in range(5):
        x.fill_(0.1 * (i + 1))
        graph.replay()
        values.append(f"{loss.item():.4f}")
    print(values)


def async_allocator() -> None:
    """The stream-ordered allocator under PyTorch."""
    import os

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    import torch

    total = torch.zeros(1, device="cuda")
    for i in range(50):
        total += torch.full((1000 * (i % 7 + 1),), float(i), device="cuda").mean()
    print(total.item(), torch.cuda.get_allocator_backend())


def expandable_segments() -> None:
    """PyTorch's expandable segments: virtual memory management."""
    import os

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    kept = [torch.full((1 << 20,), float(i), device="cuda") for i in range(40)]
    del kept[::2]
    torch.cuda.empty_cache()
    kept += [torch.full((3 << 20,), 7.0, device="cuda")]
    print([t[5].item() for t in kept])


def out_of_memory() -> None:
    """An out-of-memory error that is caught, and work that goes on."""
    import torch

    try:
        torch.empty(1 << 42, device="cuda", dtype=torch.uint8)
        print("no error")
    except torch.cuda.OutOfMemoryError:
        print("caught")
    print(torch.ones(10, device="cuda").sum().item())


def rnn() -> None:
    """LSTM and GRU through cuDNN, packed sequences, backward."""
    import torch

    for kind in (torch.nn.LSTM, torch.nn.GRU):
        torch.manual_seed(0)
        net = kind(16, 32, num_layers=2, bidirectional=True).cuda()
        x = torch.randn(7, 4, 16, device="cuda", requires_grad=True)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, [7, 5, 3, 2])
        out, _ = net(packed)
        out.data.square().sum().backward()
        print(digest(out.data), digest(x.grad), digest(net.weight_ih_l0.grad))


def ctc_loss() -> None:
    """CTC loss by cuDNN: labels in host memory."""
    import torch

    torch.manual_seed(0)
    log_probs = torch.randn(50, 4, 20, device="cuda").log_softmax(2).detach().requires_grad_()
    targets = torch.randint(1, 20, (4 * 10,), dtype=torch.int32)
    lengths = [50] * 4, [10] * 4
    with torch.backends.cudnn.flags(enabled=True):
        loss = torch.nn.functional.ctc_loss(log_probs, targets, *lengths)
    loss.backward()
    print(digest(loss), digest(log_probs.grad), type(loss.grad_fn).__name__)


def attention() -> None:
    """Scaled dot product attention by every back end."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    shape = (2, 8, 128, 64)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for backend in (
        SDPBackend.MATH,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    ):
        with sdpa_kernel(backend):
            leaves = [t.clone().requires_grad_() for t in (q, k, v)]
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
            out.float().square().sum().backward()
            print(backend.name, digest(out), digest(leaves[1].grad))


def linear_algebra() -> None:
    """cuSOLVER, cuSPARSE, cuFFT through PyTorch."""
    import torch

    torch.manual_seed(0)
    a = torch.randn(6, 40, 40, device="cuda", dtype=torch.float64)
    spd = a @ a.mT + 40 * torch.eye(40, device="cuda", dtype=torch.float64)
    print(digest(torch.linalg.cholesky(spd)), digest(torch.linalg.inv(spd)))
    print(digest(torch.linalg.eigvalsh(spd)), digest(torch.linalg.svdvals(a)))
    print(digest(torch.linalg.qr(a)[1]), digest(torch.linalg.solve(spd, a)))
    sparse = torch.randn(64, 64, device="cuda").relu().to_sparse_csr()
    print(digest(sparse @ torch.ones(64, 8, device="cuda")))
    x = torch.randn(5, 300, device="cuda")
    print(digest(torch.fft.rfft(x)), digest(torch.fft.ifft2(torch.fft.fft2(x)).real))


def streams_and_events() -> None:
    """Two streams, events with timing, record_stream."""
    import torch

    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(first):
        begin.record()
        x = torch.ones(1 << 20, device="cuda").cumsum(0)
        end.record()
    second.wait_event(end)
    with torch.cuda.stream(second):
        y = x * 2
    x.record_stream(second)
    second.synchronize()
    print(y[-1].item(), begin.elapsed_time(end) > 0, end.query())


def shared_tensors() -> None:
    """Two processes share a tensor by CUDA IPC."""
    import torch
    import torch.multiprocessing as mp

    mp.set_start_method("spawn")
    x = torch.arange(10.0, device="cuda")
    done = mp.get_context("spawn").Queue()
    child = mp.Process(target=shared_child, args=(x, done))
    child.start()
    done.get(timeout=60)
    child.join()
    print(x.tolist())


def shared_child(x: Any, done: Any) -> None:
    """The other process."""
    import torch

    x += 100
    torch.cuda.synchronize()
    done.put(1)


def jax_program() -> None:
    """JAX: a matrix product, a gradient, a loop."""
    import jax
    import jax.numpy as jnp

    key = jax.random.PRNGKey(0)
    x = jax.random.normal(key, (256, 256))
    y = jax.jit(lambda m: jnp.tanh(m @ m.T).sum())(x)
    g = jax.grad(lambda m: (m @ m.T).sum())(x)
    z = jax.lax.fori_loop(0, 10, lambda i, c: c * 0.5 + i, jnp.ones(4))
    print(jax.devices()[0].platform, f"{float(y):.3f} {float(jnp.abs(g).mean()):.3f}", z.tolist())


def cupy_program() -> None:
    """CuPy: an elementwise kernel, a product, a sort."""
    import cupy

    x = cupy.arange(1000, dtype=cupy.float32)
    print(float((x * 2 + 1).sum()), float((x.reshape(10, 100) @ x.reshape(100, 10)).trace()))
    print(cupy.sort(-x)[:3].tolist())


def profiler() -> None:
    """The profiler degrades to the CPU where there is no CUPTI; natively it has CUDA events too."""
    import torch

    with torch.profiler.profile() as p:
        torch.ones(1000, device="cuda").sum().item()
    print(any("sum" in e.key for e in p.key_averages()))


FEATURES = {
    f.__name__: f
    for f in (
        compile_model, amp, data_loader, triton_kernels, cuda_graph, async_allocator,
        expandable_segments, out_of_memory, rnn, ctc_loss, attention, linear_algebra,
        streams_and_events,
        shared_tensors, jax_program, cupy_program, profiler,
        cublas_legacy, cublas_grouped, cublaslt_in_place, cufft_xt, curand_host,
    )
}  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in FEATURES:
        print("\n".join(FEATURES))
        sys.exit(2)
    FEATURES[sys.argv[1]]()
