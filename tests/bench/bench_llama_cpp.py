"""llama.cpp beside clime-server: the same model in bf16, the same prompts, the same cores.

    bench_llama_cpp.py MODEL_DIR

Prints tokens generated a second, prefill included, at batches of 1, 8 and 32 (bench_model.py's figure). MODEL_DIR is a
folder of clime-train init --family qwen3 with tied embeddings; it is written as GGUF first. Needs numpy and PyPI's gguf
and llama-cpp-python (built from source there: some ten minutes on two cores); where they are missing that is said.
"""

import ctypes
import json
import os
import pathlib
import struct
import sys
import tempfile
import time

from bench_model import BATCHES, N_IN, N_OUT, prompts

NAMES = {  # of a layer's tensors; llama.cpp wants norms in fp32
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def gguf_name(name):
    name = name.removesuffix(".weight")
    if name in TOP:
        return TOP[name] + ".weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def tensors(folder):
    """(name, its bf16 numbers as uint16)"""
    import numpy as np

    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        (n,) = struct.unpack("<Q", data[:8].tobytes())
        for name, row in json.loads(data[8 : 8 + n].tobytes()).items():
            if name != "__metadata__":
                begin, end = row["data_offsets"]
                assert row["dtype"] == "BF16", name
                yield name, data[8 + n + begin : 8 + n + end].view(np.uint16).reshape(row["shape"])


def write_gguf(folder, path):
    import gguf
    import numpy as np

    c = json.loads((pathlib.Path(folder) / "config.json").read_text())
    w = gguf.GGUFWriter(path, "qwen3")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("no_vocab")
    for name, bits in tensors(folder):
        if bits.ndim == 1:
            w.add_tensor(gguf_name(name), (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            raw = np.ascontiguousarray(bits).view(np.uint8)
            w.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def generate(lib, model, n, vocab, threads):
    """Tokens a second of n sequences, greedy."""
    import numpy as np

    params = lib.llama_context_default_params()
    params.n_ctx = n * (N_IN + N_OUT)
    params.n_batch = params.n_ubatch = n * N_IN
    params.n_seq_max = n
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(model, params)
    assert context, "no context"
    batch = lib.llama_batch_init(n * N_IN, 0, 1)

    def step(rows):  # (token, position, sequence, whether its logits are wanted)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        assert lib.llama_decode(context, batch) == 0
        at = [i for i, row in enumerate(rows) if row[3]]
        pointers = [ctypes.cast(lib.llama_get_logits_ith(context, i), ctypes.POINTER(ctypes.c_float)) for i in at]
        return [int(np.ctypeslib.as_array(p, (vocab,)).argmax()) for p in pointers]

    ids = prompts(n, n)
    t0 = time.perf_counter()
    new = step([(t, p, s, p == N_IN - 1) for s in range(n) for p, t in enumerate(ids[s])])
    for k in range(N_OUT - 1):
        new = step([(new[s], N_IN + k, s, True) for s in range(n)])
    seconds = time.perf_counter() - t0
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    return n * N_OUT / seconds


def main():
    try:
        import gguf  # noqa: F401
        import llama_cpp as lib
    except ImportError as e:
        print(f"no llama.cpp beside: {e} (pip install gguf llama-cpp-python)")
        return
    folder = sys.argv[1]
    vocab = json.loads((pathlib.Path(folder) / "config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory() as tmp:
        path = f"{tmp}/model.gguf"
        write_gguf(folder, path)
        quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        model = lib.llama_model_load_from_file(path.encode(), params)
        assert model, "llama.cpp does not load what was written"
        threads = len(os.sched_getaffinity(0))
        generate(lib, model, 1, vocab, threads)  # touches every page of the weights
        speeds = [f"batch {n}: {generate(lib, model, n, vocab, threads):.1f}" for n in BATCHES]
        lib.llama_model_free(model)
    print(f"llama.cpp (llama-cpp-python {lib.__version__}) in bf16, {threads} threads, tokens/s: " + "; ".join(speeds))


main()
