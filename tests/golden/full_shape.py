"""Makes a random bundle of Qwen3-0.6B's shape, and runs torch on it: the other half of `kernels/examples/full_shape.rs`.

    venv/bin/python full_shape.py FOLDER                         # about 1.2 GB, and 4 GB of memory
    cargo run --release -p tack-kernels --example full_shape -- FOLDER

The weights are stored in bfloat16, as the published ones are; the reference widens them and computes in 32-bit floats.
Not part of any test run: it takes minutes.
"""

import os
import sys
import time
from pathlib import Path

import torch
from make import Case, expect, heads, save_adapter
from peft import PeftModel
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3Model

LENGTHS = [1, 128, 512]

CASE = Case(
    "full_shape", seed=11, hidden=1024, intermediate=3072, layers=28, heads=16, kv_heads=8, head_dim=128, vocab=151_936,
    dtype=torch.bfloat16, rank=16, alpha=32.0,
)  # fmt: skip


def base_model() -> torch.nn.Module:
    """The published shape and initialization, with gains that are not all one."""
    torch.manual_seed(CASE.seed)
    config = Qwen3Config(
        vocab_size=CASE.vocab,
        hidden_size=CASE.hidden,
        intermediate_size=CASE.intermediate,
        num_hidden_layers=CASE.layers,
        num_attention_heads=CASE.heads,
        num_key_value_heads=CASE.kv_heads,
        head_dim=CASE.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": CASE.theta},
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
    )
    model = Qwen3Model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
    return model.to(CASE.dtype).eval()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    base_model().save_pretrained(folder, max_shard_size="5GB")
    adapter = folder / "adapter"
    save_adapter(CASE, Qwen3Model.from_pretrained(folder, dtype=torch.float32), adapter)
    head = heads(CASE)
    save_file(head, folder / "heads.safetensors")

    model = Qwen3Model.from_pretrained(folder, dtype=torch.float32).eval()
    expected = expect(CASE, model, head, "base.f32", LENGTHS)
    adapted = PeftModel.from_pretrained(model, adapter).eval()
    expected |= expect(CASE, adapted, head, "adapted.f32", LENGTHS)
    save_file(expected, folder / "expected.safetensors")
    # Beside the weights at last: `from_pretrained` would attach it.
    for file in adapter.iterdir():
        file.rename(folder / file.name)
    adapter.rmdir()

    merged = adapted.merge_and_unload()
    for attempt in range(3):
        wall, cpu = time.monotonic(), time.process_time()
        expect(CASE, merged, head, "timed", [512])
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        threads, load = torch.get_num_threads(), os.getloadavg()[0]
        print(f"torch f32, merged, 512 tokens: {wall:.2f} s wall, {cpu:.2f} s CPU, {threads} threads, load {load:.1f}")


if __name__ == "__main__":
    main()
