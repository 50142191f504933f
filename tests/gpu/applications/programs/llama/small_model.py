# SPDX-License-Identifier: Apache-2.0
"""Writes a small model for llama.cpp, whose weights are random and the same every time.

`python small_model.py GGUF_PY KIND FILE`: GGUF_PY is the folder gguf-py of llama.cpp, KIND F16,
Q8_0 or Q4_0. Its 259 tokens are the bytes and three signs, so that it needs no vocabulary.
"""

from __future__ import annotations

import sys

import numpy as np

sys.path.insert(0, sys.argv[1])

import gguf

WIDTH, HEADS, LAYERS, INNER, CONTEXT = 256, 8, 4, 768, 512
SIGNS = ("<unk>", "<s>", "</s>")


def main() -> None:
    """Write it."""
    _, _, kind, path = sys.argv
    rng = np.random.default_rng(11)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random weights")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = [*SIGNS, *(f"<0x{byte:02X}>" for byte in range(256))]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3, *([6] * 256)])  # unknown, control, bytes
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    chosen = gguf.GGMLQuantizationType[kind]

    def add(name: str, *shape: int) -> None:
        weights = (rng.normal(size=shape) * 1.5 / shape[-1] ** 0.5).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(weights, chosen), raw_dtype=chosen)

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(WIDTH, dtype=np.float32))

    narrow = WIDTH // 2
    add("token_embd.weight", len(tokens), WIDTH)
    add("output.weight", len(tokens), WIDTH)
    ones("output_norm.weight")
    for i in range(LAYERS):
        ones(f"blk.{i}.attn_norm.weight")
        ones(f"blk.{i}.ffn_norm.weight")
        add(f"blk.{i}.attn_q.weight", WIDTH, WIDTH)
        add(f"blk.{i}.attn_k.weight", narrow, WIDTH)
        add(f"blk.{i}.attn_v.weight", narrow, WIDTH)
        add(f"blk.{i}.attn_output.weight", WIDTH, WIDTH)
        add(f"blk.{i}.ffn_gate.weight", INNER, WIDTH)
        add(f"blk.{i}.ffn_up.weight", INNER, WIDTH)
        add(f"blk.{i}.ffn_down.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
