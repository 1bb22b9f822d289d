"""A tiny random Llama, Qwen 2 or Gemma 3 as a GGUF file; what transformers and llama.cpp both read."""

import json
from pathlib import Path
from typing import Any

import gguf
from safetensors.numpy import load_file

_NAMES = {  # the part of a layer in transformers: in a GGUF file
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_GEMMA3 = _NAMES | {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def make_gguf(folder: Path, file: Path, kind: str = "F32", architecture: str = "llama") -> Path:
    """Write the model of ``folder`` (``tiny_lm``) to ``file``: a Llama, or that of the
    ``architecture``.

    ``kind`` is the number format of its matrices (F32, F16, BF16, Q8_0, Q4_0 ...); vectors are F32.
    Any ``architecture`` but llama, qwen2 and gemma3 is only what the header then says.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name(file.stem)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(
        size := config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    )
    writer.add_key_length(size)
    writer.add_rope_freq_base(config["rope_parameters"].get("rope_theta", 1e6))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{kind}", gguf.LlamaFileType.ALL_F32))
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    for name, weights in load_file(folder / "model.safetensors").items():
        _add_tensor(writer, name, weights, config, gguf.GGMLQuantizationType[kind], architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    """A byte-level BPE, as GPT-2's; its special tokens are control tokens, the first one ends a
    text.

    Other added tokens (the built-in model's instructions) are found in a text as they stand.
    """
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = {**tokenizer["model"]["vocab"], **added}
    special = [token["content"] for token in tokenizer["added_tokens"] if token["special"]]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    own = gguf.TokenType.USER_DEFINED
    kinds = [
        gguf.TokenType.CONTROL
        if token in special
        else own
        if token in added
        else gguf.TokenType.NORMAL
        for token in tokens
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    for add in (
        writer.add_bos_token_id,
        writer.add_eos_token_id,
        writer.add_unk_token_id,
        writer.add_pad_token_id,
    ):
        add(vocabulary[special[0]])
    writer.add_add_bos_token(False)


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    weights: Any,
    config: dict[str, Any],
    kind: Any,
    architecture: str,
) -> None:
    stem, _, ending = name.rpartition(".")
    *layer, part = stem.removeprefix("model.layers.").split(".", 1) if "layers" in stem else [stem]
    heads = {
        "self_attn.q_proj": "num_attention_heads",
        "self_attn.k_proj": "num_key_value_heads",
    }.get(part)
    # llama.cpp turns neighbouring pairs by RoPE
    if heads and architecture not in ("qwen2", "gemma3"):
        weights = (
            weights.reshape(config[heads], 2, -1, weights.shape[-1])
            .swapaxes(1, 2)
            .reshape(weights.shape)
        )
    kind = kind if weights.ndim > 1 else gguf.GGMLQuantizationType.F32
    quantized = gguf.quants.quantize(weights.copy(), kind)
    names = _GEMMA3 if architecture == "gemma3" else _NAMES
    writer.add_tensor(
        f"{f'blk.{layer[0]}.' if layer else ''}{names[part]}.{ending}", quantized, raw_dtype=kind
    )
