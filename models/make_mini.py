#!/usr/bin/env python3
"""Makes `models/mini`: a bundle with the real shape of everything and nothing learned but its tokenizer.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    for p in flask==2.2.2 flask==2.2.3 pytest==7.1.2 pytest==7.1.3 requests==2.26.0 requests==2.27.0; do
        venv/bin/pip download --no-deps --only-binary=:all: -d wheels "$p"
    done
    venv/bin/python models/make_mini.py wheels models/mini

The files come out byte for byte the same each time: the corpus is pinned by digest, the trainer breaks ties by token
number, and the weights come from Python's Mersenne Twister through arithmetic that is exact on every machine.
"""

import difflib
import hashlib
import json
import os
import random
import struct
import sys
import zipfile
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402  (the variable above must be set first)
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers  # noqa: E402

TOKENIZERS_VERSION = "0.23.3"
SEED = 20_261_130

# Wheels that hold repaired Python code in two neighbouring releases: the older, the newer, digests of both.
# Flask is BSD-3-Clause, pytest MIT, requests Apache-2.0. No text of theirs is in the bundle: only how often pairs of
# byte sequences occurred in it decides the merges.
CORPUS = [
    ("Flask-2.2.2-py3-none-any.whl", "b9c46cc36662a7949f34b52d8ec7bb59c0d74ba08ba6cb9ce9adc1d8676d9526"),
    ("Flask-2.2.3-py3-none-any.whl", "c0bec9477df1cb867e5a67c9e1ab758de9cb4a3e52dd70681f59fa40a62b3f2d"),
    ("pytest-7.1.2-py3-none-any.whl", "13d0e3ccfc2b6e26be000cb6568c832ba67ba32e719443bfe725814d3c42433c"),
    ("pytest-7.1.3-py3-none-any.whl", "1377bda3466d70b55e3f5cecfa55bb7cfcf219c7964629b967c37cf0bda818b7"),
    ("requests-2.26.0-py2.py3-none-any.whl", "6c1246513ecd5ecd4528a0906f910e8f0f9c6b8ec72030dc9fd154dc1a6efd24"),
    ("requests-2.27.0-py2.py3-none-any.whl", "f71a09d7feba4a6b64ffd8e9d9bc60f9bf7d7e19fd0e04362acb1cfc2e3d98df"),
]

# Qwen3's pre-tokenizer and its added tokens, by name and in order, so that every path of the real tokenizer is walked.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end "
    "vision_start vision_end vision_pad image_pad video_pad"
).split()
NOT_SPECIAL = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()
ADDED = [(f"<|{name}|>", True) for name in SPECIAL] + [(name, False) for name in NOT_SPECIAL]

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, RANK = 6144, 64, 2, 2, 1, 32, 192, 16
ACTIONS = 5


def texts(wheel: Path, digest: str) -> dict[str, str]:
    """The Python files and the prose of a wheel whose digest is `digest`, by path."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != digest:
        sys.exit(f"{wheel}: expected sha256 {digest}, found {found}")
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(n for n in archive.namelist() if n.endswith(".py") or n.endswith("/METADATA"))
        return {name: archive.read(name).decode("utf-8") for name in names}


def corpus(folder: Path) -> list[str]:
    """Every text of the newer releases, and each change from the older to the newer as git shows it."""
    documents = []
    for (old_name, old_digest), (new_name, new_digest) in zip(CORPUS[::2], CORPUS[1::2]):
        old, new = texts(folder / old_name, old_digest), texts(folder / new_name, new_digest)
        documents += new.values()
        for path in sorted(set(old) & set(new)):
            lines = difflib.unified_diff(
                old[path].splitlines(True), new[path].splitlines(True), f"a/{path}", f"b/{path}"
            )
            documents.append("".join([f"diff --git a/{path} b/{path}\n", *lines]))
    return documents


def tokenizer_json(documents: list[str]) -> bytes:
    """A byte-level BPE in the published layout of Qwen3's `tokenizer.json`."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(ADDED),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    made = json.loads(tokenizer.to_str())
    if len(made["model"]["vocab"]) != VOCAB - len(ADDED):
        sys.exit(f"the corpus gave {len(made['model']['vocab'])} tokens; expected {VOCAB - len(ADDED)}")
    made["added_tokens"] = [
        {
            "id": VOCAB - len(ADDED) + index,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": special,
        }
        for index, (content, special) in enumerate(ADDED)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    made["post_processor"] = made["decoder"] = byte_level
    made["model"]["vocab"] = dict(sorted(made["model"]["vocab"].items(), key=lambda entry: entry[1]))
    return (json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def bf16(value: float) -> bytes:
    """Rounds to the nearest bfloat16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def f32(value: float) -> bytes:
    return struct.pack("<f", value)


def safetensors(tensors: dict[str, tuple[list[int], list[float]]], dtype: str) -> bytes:
    """The safetensors layout: 8 bytes of header length, a JSON header padded to 8 bytes, the tensors one by one."""
    pack = {"BF16": bf16, "F32": f32}[dtype]
    header, body = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, (shape, values) in sorted(tensors.items()):
        begin = len(body)
        body += b"".join(map(pack, values))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


class Weights:
    """Random tensors. Uniform, since `random()` is exact and a logarithm is not the same on every libm."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def matrix(self, rows: int, columns: int, deviation: float) -> tuple[list[int], list[float]]:
        width = deviation * 2 * 3**0.5
        return [rows, columns], [(self.random.random() - 0.5) * width for _ in range(rows * columns)]


def ones(size: int) -> tuple[list[int], list[float]]:
    return [size], [1.0] * size


def projections() -> dict[str, tuple[int, int]]:
    """Output and input width of each attention projection."""
    return {
        "q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "o_proj": (HIDDEN, HEADS * HEAD_DIM),
    }


def model(weights: Weights) -> dict[str, tuple[list[int], list[float]]]:
    """The network under Hugging Face's names; deviation 0.02 is the family's own for embeddings, fan-in elsewhere."""
    tensors = {"model.embed_tokens.weight": weights.matrix(VOCAB, HIDDEN, 0.02), "model.norm.weight": ones(HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = ones(HIDDEN)
        for norm in ("q_norm", "k_norm"):
            tensors[f"{at}.self_attn.{norm}.weight"] = ones(HEAD_DIM)
        for name, (rows, columns) in projections().items():
            tensors[f"{at}.self_attn.{name}.weight"] = weights.matrix(rows, columns, columns**-0.5)
        for name, rows, columns in [
            ("gate_proj", INTERMEDIATE, HIDDEN),
            ("up_proj", INTERMEDIATE, HIDDEN),
            ("down_proj", HIDDEN, INTERMEDIATE),
        ]:
            tensors[f"{at}.mlp.{name}.weight"] = weights.matrix(rows, columns, columns**-0.5)
    return tensors


def adapter(weights: Weights) -> dict[str, tuple[list[int], list[float]]]:
    """A LoRA adapter under PEFT's names. `lora_B` is not zero, as it would be before training, so that it counts."""
    tensors = {}
    for layer in range(LAYERS):
        for name, (rows, columns) in projections().items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = weights.matrix(RANK, columns, columns**-0.5)
            tensors[f"{at}.lora_B.weight"] = weights.matrix(rows, RANK, 0.05)
    return tensors


def heads(weights: Weights) -> dict[str, tuple[list[int], list[float]]]:
    return {
        f"{head}.{part}": tensor
        for head in ("success", "cost")
        for part, tensor in (
            ("weight", weights.matrix(ACTIONS, HIDDEN, 0.02)),
            ("bias", ([ACTIONS], [0.0] * ACTIONS)),
        )
    }


CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": VOCAB - len(ADDED),
    "eos_token_id": VOCAB - len(ADDED) + 2,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": 4096,
    "max_window_layers": LAYERS,
    "model_type": "qwen3",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}

ADAPTER_CONFIG = {
    "base_model_name_or_path": "",
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": RANK,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "task_type": "FEATURE_EXTRACTION",
    "use_dora": False,
    "use_rslora": False,
}

# The digest of no bytes: there is no policy and no scaffold behind random weights.
NOTHING = hashlib.sha256(b"").hexdigest()

CONTROLLER = {
    "format": "tack-controller",
    "version": 1,
    "name": "mini",
    "lambda": 0.0,
    "lambda_gate": {"not_run": "the weights are random, so there are no development outcomes to choose by"},
    "field_shares": 1,
    "regime": {
        "repair_policy": {"name": "none", "digest": NOTHING},
        "scaffold": {"name": "none", "digest": NOTHING},
        "budget": "paper",
        "limits": {"output_tokens": 8192, "tool_calls": 30, "repair": 1_200_000_000, "pretest": 300_000_000},
    },
    "training": {"trained": False, "note": "random weights from seed 20261130; only the tokenizer was trained"},
}


def pretty(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if tokenizers.__version__ != TOKENIZERS_VERSION:
        sys.exit(f"expected tokenizers {TOKENIZERS_VERSION}, found {tokenizers.__version__}")
    wheels, out = Path(sys.argv[1]), Path(sys.argv[2])
    weights = Weights(SEED)
    files = {
        "config.json": pretty(CONFIG),
        "model.safetensors": safetensors(model(weights), "BF16"),
        "tokenizer.json": tokenizer_json(corpus(wheels)),
        "adapter_config.json": pretty(ADAPTER_CONFIG),
        "adapter_model.safetensors": safetensors(adapter(weights), "F32"),
        "heads.safetensors": safetensors(heads(weights), "F32"),
    }
    # The network's digest is what `sha256sum FILES | sha256sum` prints, with the files it is built from in order.
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(set(files) - {"tokenizer.json"})]
    digests = {
        "network": hashlib.sha256("".join(lines).encode()).hexdigest(),
        "tokenizer": hashlib.sha256(files["tokenizer.json"]).hexdigest(),
    }
    files["controller.json"] = pretty({**CONTROLLER, "digests": digests})
    out.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (out / name).write_bytes(data)
        print(f"{hashlib.sha256(data).hexdigest()}  {len(data):>9}  {name}")


if __name__ == "__main__":
    main()
