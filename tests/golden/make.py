"""Makes the golden files: tiny random Qwen3 checkpoints and what Hugging Face's implementation computes with them.

    python3 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python make.py [FOLDER]      # default: the folder of this script

Every case is a model bundle in a folder of its own, beside `expected.safetensors`:

    {base,adapted}.{f32,bf16}.LENGTH.hidden     [D]   hidden state of the last token, after the final norm
    {base,adapted}.{f32,bf16}.LENGTH.success    [5]   success.weight . hidden + success.bias
    {base,adapted}.{f32,bf16}.LENGTH.cost       [5]   cost.weight . hidden + cost.bias

`f32`: the stored weights widened to 32-bit floats, everything computed in them. `bf16` (only where the weights are stored
so): `transformers` computes in bfloat16, rounding every activation; the heads are applied to its result in 32 bits.
The tokens of a sequence are `(7919 i + 13) mod V` for i = 0, 1, ...

Weights follow from the seeds alone. The expected numbers come from torch on one thread; on another processor their last
bits may differ, which the tolerance of the tests covers.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

LENGTHS = [1, 2, 17, 63, 64, 65, 255, 256, 257]


@dataclass
class Case:
    """One checkpoint. Sizes have the names of `config.json`."""

    name: str
    seed: int
    hidden: int = 32
    intermediate: int = 40
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    vocab: int = 80
    theta: float = 1_000_000.0
    # Standard deviation of the weights, times sqrt(hidden): wide enough that attention is far from uniform.
    spread: float = 1.5
    dtype: torch.dtype = torch.float32
    shard_bytes: int | None = None
    tied: bool = True
    causal_lm: bool = True
    rank: int = 4
    alpha: float = 8.0
    rslora: bool = False
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")


CASES = [
    Case("plain", seed=1, hidden=64, intermediate=48, head_dim=16, vocab=96, rank=16, alpha=32.0),
    # Heads wider than hidden / heads, a feed-forward width and a vocabulary that no tile divides.
    Case("wide_heads", seed=2, head_dim=18, intermediate=37, vocab=83),
    Case("one_kv_head", seed=3, kv_heads=1, layers=3),
    # Saved from the bare model, so its tensors have no prefix.
    Case("theta", seed=4, heads=2, head_dim=16, theta=10_000.0, causal_lm=False, rank=3, alpha=3.0),
    # The spread of the published initialization, 0.02 sqrt(1024). A wider one or a narrower network amplifies what
    # bfloat16 itself loses: at 1.0 and 32 wide, torch in bfloat16 is up to 3.2e-2 from torch in 32 bits; here, 1.5e-2.
    Case("bf16", seed=5, hidden=64, head_dim=16, dtype=torch.bfloat16, spread=0.64),
    Case("f16", seed=6, dtype=torch.float16, targets=("q_proj", "v_proj")),
    # Not tied, so a head of the language model is stored that nobody reads.
    Case("sharded", seed=7, shard_bytes=20_000, tied=False, rslora=True),
]


def base_model(case: Case) -> torch.nn.Module:
    """A checkpoint whose every weight is random: also the gains, which Hugging Face starts at one."""
    torch.manual_seed(case.seed)
    config = Qwen3Config(
        vocab_size=case.vocab,
        hidden_size=case.hidden,
        intermediate_size=case.intermediate,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        head_dim=case.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": case.theta},
        max_position_embeddings=512,
        tie_word_embeddings=case.tied,
        initializer_range=case.spread * case.hidden**-0.5,
    )
    model = (Qwen3ForCausalLM if case.causal_lm else Qwen3Model)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
    return model.to(case.dtype).eval()


def save_adapter(case: Case, model: torch.nn.Module, folder: Path) -> None:
    """PEFT's own files for an adapter that does something (PEFT starts B at zero), less what differs from run to run:
    the order of a set, and a path."""
    torch.manual_seed(case.seed + 100)
    config = LoraConfig(
        r=case.rank, lora_alpha=case.alpha, use_rslora=case.rslora, target_modules=list(case.targets), lora_dropout=0.0
    )
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink()
    path = folder / "adapter_config.json"
    saved = json.loads(path.read_text())
    saved["target_modules"] = sorted(saved["target_modules"])
    saved["base_model_name_or_path"] = None
    path.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")


def heads(case: Case) -> dict[str, torch.Tensor]:
    """Two heads of five rows."""
    torch.manual_seed(case.seed + 200)
    std = case.hidden**-0.5
    return {
        "success.weight": torch.randn(5, case.hidden) * std,
        "success.bias": torch.randn(5),
        "cost.weight": torch.randn(5, case.hidden) * std,
        "cost.bias": torch.randn(5),
    }


@torch.no_grad()
def expect(
    case: Case, model: torch.nn.Module, head: dict[str, torch.Tensor], prefix: str, lengths: list[int] = LENGTHS
) -> dict[str, torch.Tensor]:
    """Last hidden state and ten outputs at every length."""
    expected = {}
    for length in lengths:
        tokens = torch.tensor([[(7919 * i + 13) % case.vocab for i in range(length)]])
        states = model(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states
        hidden = states[-1][0, -1].float()
        row = f"{prefix}.{length}"
        expected[f"{row}.hidden"] = hidden.clone()
        for name in ("success", "cost"):
            expected[f"{row}.{name}"] = head[f"{name}.weight"] @ hidden + head[f"{name}.bias"]
    return expected


def make(case: Case, root: Path) -> None:
    folder = root / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = base_model(case)
    model.save_pretrained(folder, max_shard_size=case.shard_bytes or "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    head = heads(case)
    save_file(head, folder / "heads.safetensors")

    precisions = {"f32": torch.float32}
    if case.dtype == torch.bfloat16:
        precisions["bf16"] = torch.bfloat16
    expected = {}
    with tempfile.TemporaryDirectory() as scratch:
        # Apart from the weights: `from_pretrained` attaches an adapter that it finds beside them.
        save_adapter(case, base_model(case).float(), Path(scratch))
        for name, dtype in precisions.items():
            # From the files, not from memory: a model that is cast also casts its rotary frequencies.
            computing = type(model).from_pretrained(folder, dtype=dtype).eval()
            expected |= expect(case, computing, head, f"base.{name}")
            adapted = PeftModel.from_pretrained(computing, scratch).eval()
            expected |= expect(case, adapted, head, f"adapted.{name}")
        for file in Path(scratch).iterdir():
            shutil.copy(file, folder)
    save_file(expected, folder / "expected.safetensors")


def main() -> None:
    torch.set_num_threads(1)
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for case in CASES:
        make(case, root)
        size = sum(file.stat().st_size for file in (root / case.name).iterdir())
        print(f"{case.name}: {size:,} bytes")


if __name__ == "__main__":
    main()
