"""Builds and saves encoders: a recipe's base under stock pooling, or a finished SentenceTransformer as it is.

Only stock sentence-transformers modules and safetensors are used, so whoever loads the result needs no code of ours.
Padding is on the right: with left padding a GPT-2 encoder would see other positions in a batch than alone.
"""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from transformers import MODEL_MAPPING, AutoConfig, PreTrainedTokenizerFast
from transformers.quantizers.auto import AutoQuantizationConfig

from hub.contract.recipe import Encoder, Lora
from hub.contract.sections.dataset import quantization_values
from hub.contract.shards import write_text
from hub.errors import InputError
from hub.model_folder import NO_CODE, NO_PICKLES, reading_model, require_safetensors
from training.model import adapters
from training.model.bases import Base
from training.model.prompts import PLAIN, PROBES, PROMPTED, check_saved_ids, input_ids, set_prompt
from training.model.vocabulary import cut
from training.model.word_vectors import load_word_vectors

MODULE_CONFIG = "sentence_bert_config.json"


def build_encoder(spec: Encoder, base: Base, lora: Lora | None = None, key: str = "base") -> SentenceTransformer:
    """The encoder of a recipe's ``key``, untrained: with ``lora``, a frozen base under a new adapter, the identity.

    Raises InputError when the base cannot be loaded, or prompt, lengths or adapter do not fit it.
    """
    place = f"{key}: {spec.repo_id or spec.path}"
    if spec.modules == "word-vectors":
        module = load_word_vectors(base.folder, spec.max_seq_length)
        return SentenceTransformer(modules=[module], similarity_fn_name="cosine")
    if spec.modules == "sentence-transformer":
        return _finished(spec, base, place)
    transformer = _load(spec, base, place)
    if spec.modules == "static":
        return SentenceTransformer(modules=[_static(transformer, spec, base, place)], similarity_fn_name="cosine")
    set_prompt(transformer, spec.prompt, place)
    pooling = Pooling(transformer.get_embedding_dimension(), spec.pooling)
    encoder = SentenceTransformer(modules=[transformer, pooling], similarity_fn_name="cosine")
    if lora is not None:
        adapters.attach(encoder, lora, spec.repo_id, base.commit)
    return encoder


def _load(spec: Encoder, base: Base, place: str) -> Transformer:
    """The base with its tokenizer, in the recipe's precision. Raises InputError when transformers cannot load it."""
    with reading_model(place):
        config = AutoConfig.from_pretrained(base.folder, **NO_CODE)
        first = first_layers(config, spec.layers, place)
        transformer = Transformer(
            str(base.folder),
            max_seq_length=spec.max_seq_length,
            model_kwargs=_model_arguments(spec, config),
            processor_kwargs={"padding_side": "right", **NO_CODE},
            config_kwargs={**NO_CODE, **first},
            modality_config=PROMPTED if spec.prompt else PLAIN,
            module_output_name="token_embeddings",
        )
    _require_weights(transformer.model, base.folder, place)
    _check_pooling(spec, config, place)
    _check_length(spec, transformer, place)
    _set_padding(transformer, place)
    return transformer


def _require_weights(model: Any, folder: Path, place: str) -> None:
    """Raise InputError for weights that the base lacks: transformers makes them at random, and only warns.

    The names are compared once more, on the meta device: no weight is read.
    """
    if getattr(model, "is_quantized", False):
        return
    settings = {"device_map": "meta", "output_loading_info": True, **without_pooler(model.config)}
    _, found = type(model).from_pretrained(folder, **settings, **NO_PICKLES)
    if found["missing_keys"]:
        problem = f"its weights lack {min(found['missing_keys'])}, which config.json asks for"
        raise InputError(place, problem, allowed="a base with all of its weights")


def _model_arguments(spec: Encoder, config: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"dtype": spec.dtype, **NO_PICKLES}
    arguments |= without_pooler(config)
    if spec.quantization is not None:
        arguments["quantization_config"] = AutoQuantizationConfig.from_dict(quantization_values(spec.quantization))
    return arguments


def first_layers(config: Any, layers: int | None, place: str) -> dict[str, Any]:
    """The config's changes that keep the first ``layers`` layers alone (None: no change); the last norm stays.

    Raises InputError when there are not so many.
    """
    if layers is None:
        return {}
    there = config.num_hidden_layers
    if layers > there:
        raise InputError(
            f"{place}.layers", f"{layers} is more than the {there} that the base has", allowed=f"1 to {there}"
        )
    each = {
        name: value[:layers] for name, value in vars(config).items() if isinstance(value, list) and len(value) == there
    }
    return {**each, "num_hidden_layers": layers}


def without_pooler(config: Any) -> dict[str, Any]:
    """The argument that leaves the pooler out, where an architecture takes it.

    The pooler is no part of the embedding, and a base that was published without one would get random weights.
    """
    model_class = MODEL_MAPPING.get(type(config), None)
    takes = isinstance(model_class, type) and "add_pooling_layer" in inspect.signature(model_class).parameters
    return {"add_pooling_layer": False} if takes else {}


def _check_pooling(spec: Encoder, config: Any, place: str) -> None:
    """A causal model's first token has read nothing: its state is the same for every text that begins alike."""
    if spec.pooling == "cls" and any(name.endswith("ForCausalLM") for name in config.architectures or ()):
        found = f"cls, but {config.architectures[0]} reads from left to right: its first token knows no other"
        raise InputError(f"{place}.pooling", found, allowed="lasttoken or mean")


def _check_length(spec: Encoder, transformer: Transformer, place: str) -> None:
    """Positions that a text can take: RoBERTa's begin behind that of padding, so its last tokens would have none."""
    positions = getattr(transformer.config.get_text_config(), "max_position_embeddings", None)
    table = getattr(getattr(transformer.model, "embeddings", None), "position_embeddings", None)
    if positions and isinstance(table, torch.nn.Embedding) and table.padding_idx is not None:
        positions -= table.padding_idx + 1
    if positions and 0 < positions < spec.max_seq_length:
        found = f"max_seq_length {spec.max_seq_length} is more than the {positions} positions that the base has"
        raise InputError(f"{place}.max_seq_length", found, allowed=f"at most {positions}")


def _finished(spec: Encoder, base: Base, place: str) -> SentenceTransformer:
    """A finished encoder with its own modules; nothing is fetched, and no code of its repository runs."""
    require_safetensors(base.folder, place)
    with reading_model(place):
        encoder = SentenceTransformer(str(base.folder), local_files_only=True, model_kwargs=dict(NO_PICKLES), **NO_CODE)
    if isinstance(encoder[0], Transformer):
        with reading_model(place, "cannot read a sentence"):  # a chat template may refuse it
            input_ids(encoder[0], [PROBES[0]])
        _check_length(spec, encoder[0], place)
        encoder.max_seq_length = spec.max_seq_length
    return encoder


def _static(transformer: Transformer, spec: Encoder, base: Base, place: str) -> StaticEmbedding:
    """The mean of the base's input embeddings: no layer of the base is kept, and word order does not count."""
    if not isinstance(transformer.tokenizer, PreTrainedTokenizerFast):
        raise InputError(place, "a static encoder needs a fast tokenizer")
    tokenizer = transformer.tokenizer.backend_tokenizer
    weights = transformer.model.get_input_embeddings().weight
    assert isinstance(weights, torch.Tensor)
    weights = weights.detach().clone()
    if spec.vocabulary is not None and base.corpus is not None:
        tokenizer.no_truncation()
        tokenizer, weights = cut(tokenizer, weights, base.corpus.train["anchor"][:], spec.vocabulary, place)
    tokenizer.enable_truncation(spec.max_seq_length)  # stays in tokenizer.json
    return StaticEmbedding(tokenizer, embedding_weights=weights)


def _set_padding(transformer: Transformer, place: str) -> None:
    """Pad with the end token where a causal model has none of its own; the attention mask hides it either way."""
    tokenizer = transformer.tokenizer
    if tokenizer is None:
        raise InputError(place, "has no tokenizer", allowed="a text model with its tokenizer files")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InputError(place, "its tokenizer has no pad and no eos token")
        tokenizer.pad_token = tokenizer.eos_token


def has_dropout(encoder: SentenceTransformer) -> bool:
    """Whether reading a text twice in training may give two embeddings."""
    layers = list(encoder.modules())
    rates = [layer.p for layer in layers if isinstance(layer, torch.nn.Dropout)]
    rates += [getattr(layer, "attention_dropout", 0.0) for layer in layers]  # of scores inside a kernel
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def save_release(encoder: SentenceTransformer, folder: Path, spec: Encoder, base: Base, lora: Lora | None) -> None:
    """Write the form that the recipe releases: the encoder as it is, or its adapter merged into the base's weights.

    The base is merged with as it is in ``spec.dtype``, never rounded by a quantization.
    """
    if lora is None or lora.release == "adapter":
        save_encoder(encoder, folder)
        return
    adapter = folder.with_name(f"{folder.name}.adapter")
    save_encoder(encoder, adapter)
    save_encoder(merged_encoder(spec, base, adapter), folder)
    shutil.rmtree(adapter)


def merged_encoder(spec: Encoder, base: Base, adapter: Path) -> SentenceTransformer:
    """The whole model of the adapter that is saved in ``adapter``, with no adapter any more."""
    encoder = build_encoder(spec.model_copy(update={"quantization": None}), base)
    adapters.merge(encoder, adapter)
    return encoder


def save_encoder(model: SentenceTransformer, folder: Path) -> None:
    """Write a loadable model to ``folder``, which is there whole or not at all; no automatic README.

    Of an adapter, only the adapter. Raises RunError when the saved tokenizer gives other ids than the model's.
    """
    temporary = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(str(temporary), create_model_card=False, safe_serialization=True)
    if isinstance(model[0], Transformer):
        _write_loading_arguments(model, temporary / MODULE_CONFIG)
        check_saved_ids(model[0], temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def _write_loading_arguments(model: SentenceTransformer, path: Path) -> None:
    """State in a saved module what a plain ``SentenceTransformer(folder)`` shall pass to transformers.

    Without it a pooler would be made at random, and an adapter's base be read in the precision of its publication.
    """
    transformer: Any = model.transformers_model
    arguments: dict[str, Any] = {}
    if adapters.has_adapter(model):
        dtype = getattr(transformer, "base_dtype", transformer.dtype)
        arguments["dtype"] = str(dtype).removeprefix("torch.")
        adapters.write_config(model, path.parent)
    if getattr(transformer, "pooler", None) is None:
        arguments |= without_pooler(transformer.config)
    if arguments:
        config = json.loads(path.read_text(encoding="utf-8"))
        config["model_kwargs"] = {**config.get("model_kwargs", {}), **arguments}
        write_text(path, json.dumps(config, indent=4, sort_keys=True) + "\n")
