"""A peer of the inference benchmark, as a worker: a request a line on standard input, an answer a line on standard output.

    worker.py PEER DIRECTORY THREADS

PEER is `openvino`, `openvino-bf16`, `torch`, `torch-bf16`, `llama-f16` or `llama-q8_0`. DIRECTORY holds `config.json` and
`model.safetensors` as Hugging Face writes them; what a peer converts lies in DIRECTORY/peers.

A request is {"prefix": [token], "states": [[token]]}: the hidden state of the last token of `prefix + state`, after the
final norm, for each state; all states are of one length. What the prefix needs is computed before the clock starts, and
kept. The answer is {"wall_s", "cpu_s", "hidden": [[float]]}, or {"error"} where the peer cannot do that.
"""

import ctypes
import json
import os
import sys
import time

PEER, DIRECTORY, THREADS = sys.argv[1], sys.argv[2], int(sys.argv[3])
# Idle threads would take the processor from whoever is measured next.
os.environ.update(OMP_NUM_THREADS=str(THREADS), OMP_WAIT_POLICY="passive", KMP_BLOCKTIME="0")
CONVERTED = os.path.join(DIRECTORY, "peers")

import numpy as np  # noqa: E402


class Unable(Exception):
    """The peer has no way to do what is asked for."""


def config():
    with open(os.path.join(DIRECTORY, "config.json")) as file:
        found = json.load(file)
    theta = found.get("rope_theta") or found["rope_parameters"]["rope_theta"]
    return found, float(theta)


def weights():
    """Every tensor by its name below `model.`, in 32-bit floats."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(os.path.join(DIRECTORY, "model.safetensors"))
    return {name.removeprefix("model."): tensor.to(torch.float32) for name, tensor in tensors.items()}


class Torch:
    """transformers' Qwen3Model with scaled dot product attention."""

    def __init__(self, dtype):
        import torch
        import transformers

        self.torch = torch
        torch.set_num_threads(THREADS)
        shape = transformers.AutoConfig.from_pretrained(DIRECTORY)
        shape._attn_implementation = "sdpa"
        with torch.device("meta"):
            model = transformers.Qwen3Model(shape)
        model.load_state_dict(weights(), assign=True)
        # The frequencies are no part of a checkpoint.
        model.rotary_emb = type(model.rotary_emb)(config=shape)
        self.model = model.to(getattr(torch, dtype)).eval()
        # Nor are they rounded in use.
        self.model.rotary_emb = type(model.rotary_emb)(config=shape)
        self.prefix, self.cache, self.new = None, None, 0
        self.name = f"torch {torch.__version__}, transformers {transformers.__version__}, {dtype}"

    def prepare(self, prefix, count):
        if not prefix:
            self.prefix, self.cache = None, None
        elif self.prefix != prefix:
            with self.torch.inference_mode():
                tokens = self.torch.tensor([prefix] * count)
                self.cache = self.model(tokens, use_cache=True).past_key_values
            self.prefix = prefix

    def run(self, states):
        self.new = len(states[0])
        with self.torch.inference_mode():
            tokens = self.torch.tensor(states)
            if self.cache is None:
                hidden = self.model(tokens, use_cache=False).last_hidden_state
            else:
                hidden = self.model(tokens, past_key_values=self.cache, use_cache=True).last_hidden_state
            return hidden[:, -1].float().numpy()

    def after(self):
        if self.cache is not None:
            self.cache.crop(-self.new)


class OpenVino:
    """The network as a traced graph with OpenVINO's own attention, of any length and any number of states."""

    def __init__(self, precision):
        import openvino

        path = os.path.join(CONVERTED, "openvino.xml")
        if not os.path.exists(path):
            os.makedirs(CONVERTED, exist_ok=True)
            openvino.save_model(self.convert(), path, compress_to_fp16=False)
        core = openvino.Core()
        options = {
            "INFERENCE_NUM_THREADS": THREADS,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
        }
        self.compiled = core.compile_model(core.read_model(path), "CPU", options)
        self.request = self.compiled.create_infer_request()
        self.name = f"openvino {openvino.__version__.split('-')[0]}, {precision}"

    @staticmethod
    def convert():
        import openvino
        import torch
        import torch.nn.functional as functional

        shape, theta = config()
        heads, groups, size = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
        eps = shape["rms_norm_eps"]

        class Network(torch.nn.Module):
            def __init__(self, tensors):
                super().__init__()
                self.names = {name: name.replace(".", "_") for name in tensors}
                for name, tensor in tensors.items():
                    self.register_buffer(self.names[name], tensor)
                self.register_buffer("frequencies", theta ** (-torch.arange(0, size, 2).float() / size))

            def of(self, layer, name):
                return getattr(self, self.names[f"layers.{layer}.{name}.weight"])

            def norm(self, x, gain):
                return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))

            def forward(self, tokens):
                count, length = tokens.shape
                angle = torch.arange(length).float()[:, None] * self.frequencies[None]
                cos, sin = (torch.cat([f(angle)] * 2, -1)[None, None] for f in (torch.cos, torch.sin))

                def rotate(x):
                    first, second = x[..., : size // 2], x[..., size // 2 :]
                    return x * cos + torch.cat([-second, first], -1) * sin

                x = functional.embedding(tokens, getattr(self, self.names["embed_tokens.weight"]))
                for layer in range(shape["num_hidden_layers"]):
                    h = self.norm(x, self.of(layer, "input_layernorm"))
                    project = lambda name, n: functional.linear(h, self.of(layer, f"self_attn.{name}_proj")).view(
                        count, length, n, size
                    )
                    q = rotate(self.norm(project("q", heads), self.of(layer, "self_attn.q_norm")).transpose(1, 2))
                    k = rotate(self.norm(project("k", groups), self.of(layer, "self_attn.k_norm")).transpose(1, 2))
                    v = project("v", groups).transpose(1, 2)
                    k, v = (t[:, :, None].expand(count, groups, heads // groups, length, size) for t in (k, v))
                    k, v = (t.reshape(count, heads, length, size) for t in (k, v))
                    h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                    h = h.transpose(1, 2).reshape(count, length, heads * size)
                    x = x + functional.linear(h, self.of(layer, "self_attn.o_proj"))
                    h = self.norm(x, self.of(layer, "post_attention_layernorm"))
                    gate = functional.silu(functional.linear(h, self.of(layer, "mlp.gate_proj")))
                    h = gate * functional.linear(h, self.of(layer, "mlp.up_proj"))
                    x = x + functional.linear(h, self.of(layer, "mlp.down_proj"))
                return self.norm(x[:, -1], getattr(self, self.names["norm.weight"]))

        network = Network(weights()).eval()
        with torch.no_grad():
            example = torch.randint(0, 1000, (2, 16))
            return openvino.convert_model(network, example_input=example, input=[-1, -1])

    def prepare(self, prefix, count):
        if prefix:
            raise Unable("the traced graph keeps no keys and values")

    def run(self, states):
        return self.request.infer([np.array(states, dtype=np.int64)])[0]

    def after(self):
        pass


class Llama:
    """llama.cpp, built for this processor, with last-token pooling."""

    def __init__(self, kind):
        import llama_cpp

        self.llama = llama_cpp
        self.quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        path = os.path.join(CONVERTED, f"qwen3-{kind}.gguf")
        if not os.path.exists(path):
            os.makedirs(CONVERTED, exist_ok=True)
            self.convert(kind, path)
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load `{path}`")
        self.width = config()[0]["hidden_size"]
        self.context, self.shape, self.prefix = None, None, None
        self.name = f"llama.cpp of llama-cpp-python {llama_cpp.__version__}, {kind}"

    @staticmethod
    def convert(kind, path):
        import gguf

        shape, theta = config()
        writer = gguf.GGUFWriter(path + ".partial", "qwen3")
        writer.add_name("random")
        writer.add_context_length(shape.get("max_position_embeddings", 40960))
        writer.add_embedding_length(shape["hidden_size"])
        writer.add_block_count(shape["num_hidden_layers"])
        writer.add_feed_forward_length(shape["intermediate_size"])
        writer.add_head_count(shape["num_attention_heads"])
        writer.add_head_count_kv(shape["num_key_value_heads"])
        writer.add_key_length(shape["head_dim"])
        writer.add_value_length(shape["head_dim"])
        writer.add_rope_freq_base(theta)
        writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
        writer.add_vocab_size(shape["vocab_size"])
        writer.add_tokenizer_model("no_vocab")
        writer.add_pooling_type(gguf.PoolingType.LAST)
        writer.add_file_type({"f16": 1, "q8_0": 7}[kind])
        names = {"embed_tokens": "token_embd", "norm": "output_norm"}
        parts = {
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }
        for layer in range(shape["num_hidden_layers"]):
            names |= {f"layers.{layer}.{ours}": f"blk.{layer}.{theirs}" for ours, theirs in parts.items()}
        tensors = weights()
        for ours, theirs in names.items():
            tensor = tensors[f"{ours}.weight"].numpy()
            if tensor.ndim == 1:
                writer.add_tensor(f"{theirs}.weight", tensor)
            elif kind == "f16":
                writer.add_tensor(f"{theirs}.weight", tensor.astype(np.float16))
            else:
                q8_0 = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(f"{theirs}.weight", gguf.quants.quantize(tensor, q8_0), raw_dtype=q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.rename(path + ".partial", path)

    def make_context(self, count, new, prefix):
        llama = self.llama
        if self.context:
            llama.llama_free(self.context)
        options = llama.llama_context_default_params()
        options.n_ctx = max(512, count * (prefix + new))
        options.n_seq_max = count
        options.n_batch = options.n_ubatch = max(count * new, 512, prefix and 512)
        options.n_threads = options.n_threads_batch = THREADS
        options.embeddings = True
        options.pooling_type = 3
        self.context = llama.llama_init_from_model(self.model, options)
        self.batch = llama.llama_batch_init(max(count * new, 512), 0, 1)
        self.shape, self.prefix = (count, new, prefix), None

    def decode(self, states, position):
        llama, batch, n = self.llama, self.batch, 0
        for sequence, tokens in enumerate(states):
            for index, token in enumerate(tokens):
                batch.token[n], batch.pos[n] = token, position + index
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
                batch.logits[n] = index + 1 == len(tokens)
                n += 1
        batch.n_tokens = n
        if llama.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama.llama_synchronize(self.context)

    def prepare(self, prefix, count, new):
        if count > 1 and prefix:
            raise Unable("not asked for")
        if self.shape != (count, new, len(prefix)):
            self.make_context(count, new, len(prefix))
        memory = self.llama.llama_get_memory(self.context)
        if not prefix:
            self.llama.llama_memory_clear(memory, True)
        elif self.prefix != prefix:
            for start in range(0, len(prefix), 512):
                self.decode([prefix[start : start + 512]], start)
        else:
            self.llama.llama_memory_seq_rm(memory, 0, len(prefix), -1)
        self.prefix = prefix

    def run(self, states):
        self.decode(states, len(self.prefix))
        rows = (self.llama.llama_get_embeddings_seq(self.context, sequence) for sequence in range(len(states)))
        return np.stack([np.ctypeslib.as_array(row, (self.width,)).copy() for row in rows])

    def after(self):
        pass


PEERS = {
    "openvino": lambda: OpenVino("f32"),
    "openvino-bf16": lambda: OpenVino("bf16"),
    "torch": lambda: Torch("float32"),
    "torch-bf16": lambda: Torch("bfloat16"),
    "llama-f16": lambda: Llama("f16"),
    "llama-q8_0": lambda: Llama("q8_0"),
}


def main():
    # Libraries print what they like; the answers have a stream of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = PEERS[PEER]()
    print(json.dumps({"ready": peer.name}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prefix, states = request["prefix"], request["states"]
        try:
            count, new = len(states), len(states[0])
            peer.prepare(prefix, count, new) if isinstance(peer, Llama) else peer.prepare(prefix, count)
            wall, cpu = time.perf_counter(), time.process_time()
            hidden = peer.run(states)
            answer = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
            answer["hidden"] = np.asarray(hidden, dtype=np.float64).tolist()
            peer.after()
        except Unable as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


main()
