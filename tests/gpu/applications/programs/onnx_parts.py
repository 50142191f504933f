# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime in parts, a small model each: `python onnx_parts.py NAME [PROVIDER]`.

What a model computes is printed, and whether it is what the CPU computes of it; a node that only
the CPU could run is an error, so that all of it runs on the GPU.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

PROVIDER = sys.argv[2] if len(sys.argv) > 2 else "CUDAExecutionProvider"
RNG = np.random.default_rng(5)
Node = Any


def weights(**shapes: tuple[int, ...]) -> list[Any]:
    """Constants of a model."""
    made = {n: RNG.normal(size=s).astype(np.float32) / s[0] ** 0.5 for n, s in shapes.items()}
    return [numpy_helper.from_array(array, name) for name, array in made.items()]


def constant(name: str, values: Any, kind: Any = np.int64) -> Any:
    """A constant of given values."""
    return numpy_helper.from_array(np.asarray(values, dtype=kind), name)


def model(nodes: list[Node], shape: tuple[int, ...], outputs: list[str], known: list[Any]) -> bytes:
    """A model of one input x."""
    graph = helper.make_graph(
        nodes,
        "part",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        known,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def session(code: bytes, provider: str, **settings: str) -> Any:
    """A session of one provider alone."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if provider != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        # The same convolution each time, and full single precision as on the CPU.
        settings = {"cudnn_conv_algo_search": "DEFAULT", "use_tf32": "0", **settings}
        found = onnxruntime.InferenceSession(code, options, providers=[(provider, settings)])
        assert found.get_providers()[0] == provider, found.get_providers()
        return found
    return onnxruntime.InferenceSession(code, options, providers=[provider])


def show(name: str, found: Any, expected: Any, within: float = 2e-3) -> None:
    """What was computed, rounded, and whether it is near what the CPU computes."""
    wide = np.asarray(found, dtype=np.float64)
    near = np.allclose(wide, np.asarray(expected, np.float64), rtol=within, atol=within)
    digest = hashlib.sha256(np.asarray(found).tobytes()).hexdigest()[:16]
    print(name, wide.shape, f"{wide.sum():.4g}", digest, "as on the CPU" if near else "NOT AS CPU")


def run(nodes: list[Node], shape: tuple[int, ...], outputs: list[str], known: list[Any]) -> None:
    """A model three times with other inputs."""
    code = model(nodes, shape, outputs, known)
    ours, cpu = session(code, PROVIDER), session(code, "CPUExecutionProvider")
    for _ in range(3):
        x = RNG.normal(size=shape).astype(np.float32)
        found, expected = ours.run(None, {"x": x}), cpu.run(None, {"x": x})
        for name, a, b in zip(outputs, found, expected, strict=True):
            show(name, a, b)


def perceptron() -> None:
    """Products by cuBLAS."""
    nodes = [
        helper.make_node("Gemm", ["x", "a", "ba"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "b", "bb"], ["l"]),
        helper.make_node("Softmax", ["l"], ["p"]),
    ]
    run(nodes, (64, 128), ["l", "p"], weights(a=(128, 256), ba=(256,), b=(256, 10), bb=(10,)))


def convolutions() -> None:
    """cuDNN's: convolutions, pools, normalisation, transposed."""
    nodes = [
        helper.make_node("Conv", ["x", "a", "ba"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["q"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["q", "d"], ["e"], group=4, pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["e", "f"], ["g"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["g"], ["y"]),
    ]
    known = weights(a=(16, 3, 3, 3), ba=(16,), s=(16,), t=(16,), m=(16,), d=(16, 4, 3, 3))
    known += [constant("v", np.ones(16), np.float32), *weights(f=(16, 8, 2, 2))]
    run(nodes, (4, 3, 32, 32), ["e", "y"], known)


def attention() -> None:
    """Heads, layer normalisation, GELU in its parts."""
    nodes = []
    for name in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            helper.make_node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
            helper.make_node("Transpose", [f"{name}1"], [name], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["s1"]),
        helper.make_node("Softmax", ["s1"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
        helper.make_node("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["o1", "flat"], ["o2"]),
        helper.make_node("Add", ["o2", "x"], ["o3"]),
        helper.make_node("LayerNormalization", ["o3", "g", "b"], ["y"]),
        helper.make_node("Erf", ["y"], ["z"]),
    ]
    known = weights(wq=(64, 64), wk=(64, 64), wv=(64, 64), g=(64,), b=(64,))
    known += [constant("heads", [2, 32, 4, 16]), constant("flat", [2, 32, 64])]
    run(nodes, (2, 32, 64), ["p", "z"], [*known, constant("scale", 0.25, np.float32)])


def recurrent() -> None:
    """cuDNN's LSTM and GRU, both directions."""
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["a"], hidden_size=24, direction="bidirectional"),
        helper.make_node("GRU", ["x", "u", "s"], ["b"], hidden_size=16, linear_before_reset=1),
    ]
    known = weights(w=(2, 96, 20), r=(2, 96, 24), u=(1, 48, 20), s=(1, 48, 16))
    run(nodes, (12, 3, 20), ["a", "b"], known)


def sorting() -> None:
    """Sums, the largest, gathering and scattering, resizing."""
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1),
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
        helper.make_node("ArgMax", ["x"], ["g"], axis=1),
        helper.make_node("CumSum", ["x", "one"], ["c"]),
        helper.make_node("GatherElements", ["x", "i"], ["e"], axis=1),
        helper.make_node("Concat", ["v", "e"], ["j"], axis=1),
        helper.make_node("ScatterND", ["x", "rows", "put"], ["s"]),
    ]
    known = [constant("k", [5]), constant("one", 1), constant("rows", [[1], [3]])]
    known.append(constant("put", np.ones((2, 100)), np.float32))
    run(nodes, (16, 100), ["m", "g", "c", "j", "s"], known)


def halves() -> None:
    """Half precision, on the tensor cores."""
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["a"], ["ah"], to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "ah"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT),
    ]
    run(nodes, (96, 128), ["y"], weights(a=(128, 64)))


def graphs() -> None:
    """A model as a CUDA graph, its arrays bound to memory of the device."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    code = model(nodes, (32, 64), ["y"], weights(a=(64, 64), b=(64, 8)))
    ours = session(code, PROVIDER, enable_cuda_graph="1")
    cpu = session(code, "CPUExecutionProvider")
    x = RNG.normal(size=(32, 64)).astype(np.float32)
    here = onnxruntime.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
    there = onnxruntime.OrtValue.ortvalue_from_shape_and_type((32, 8), np.float32, "cuda", 0)
    binding = ours.io_binding()
    binding.bind_ortvalue_input("x", here)
    binding.bind_ortvalue_output("y", there)
    for scale in (1.0, 2.0, -1.0):  # captured at the first run, replayed at the others
        here.update_inplace(x * np.float32(scale))
        ours.run_with_iobinding(binding)
        show("y", there.numpy(), cpu.run(None, {"x": x * np.float32(scale)})[0])


PARTS = {
    f.__name__: f for f in (perceptron, convolutions, attention, recurrent, sorting, halves, graphs)
}


def load_libraries() -> None:
    """NVIDIA's, out of their packages, which need not lie where ONNX Runtime looks: beside it."""
    found = importlib.util.find_spec("nvidia")
    for place in (found and found.submodule_search_locations) or ():
        for name, cuda in (("cu13", True), ("cudnn", False)):
            folder = Path(place) / name / "lib"
            if folder.is_dir():
                onnxruntime.preload_dlls(cuda=cuda, cudnn=not cuda, directory=str(folder))


if __name__ == "__main__":
    if PROVIDER != "CPUExecutionProvider":
        load_libraries()
    PARTS[sys.argv[1]]()
