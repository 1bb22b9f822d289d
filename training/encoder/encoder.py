"""Encoders of a recipe: the base under stock pooling, prompts and LoRA adapters, or a finished SentenceTransformer.

Only stock sentence-transformers modules and safetensors are used, so the released model loads without code of ours.
Padding is on the right: with left padding, GPT-2 would see other positions in a batch than alone.

A two-sided prompt, e.g. PromptEOL's ``This sentence : "[X]" means in one word:"``, becomes the tokenizer's chat
template. So the model receives the tokens of the whole prompt as one string (Jiang et al. 2023, section 3). A template
in the post-processor would tokenise the sentence alone, and GPT-2 merges ``."`` to one token. A sentence that is too
long loses its own end, never the prompt's.

A LoRA adapter (Hu et al. 2022) is trained in float32 on a frozen base of any precision. Only the adapter is saved;
``adapter_config.json`` names the base by Hub id and commit. sentence-transformers 6.2 reads that base at main whatever
``revision`` says, so ``check_base_branch`` refuses other pins. A merged release does not depend on the base.
"""

import copy
import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from peft import LoraConfig, PeftModel, prepare_model_for_kbit_training
from peft.tuners.tuners_utils import cast_adapter_dtype
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from torch import nn
from transformers import MODEL_MAPPING, AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AutoQuantizationConfig

from hub.cli import say
from hub.client.connection import reading
from hub.contract.recipe import PROMPT_TEXT, Encoder, Lora, quantization_values
from hub.durable import write_text
from hub.errors import InputError, RunError, did_you_mean
from hub.model_limits import usable_positions
from hub.untrusted import NO_CODE, NO_PICKLES, reading_model, require_all_weights, require_safetensors
from training.encoder.bases import ADAPTER_CONFIG, Base
from training.encoder.static import cut, load_word_vectors

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
        attach(encoder, lora, spec.repo_id, base.commit)
    return encoder


def _load(spec: Encoder, base: Base, place: str) -> Transformer:
    """The base with its tokenizer, in the recipe's precision. Raises InputError when transformers cannot load it."""
    with reading_model(place):
        config = AutoConfig.from_pretrained(base.folder, **NO_CODE)
        first = first_layers(config, spec.layers, place)
        arguments: dict[str, Any] = {"dtype": spec.dtype, **NO_PICKLES, **without_pooler(config)}
        if spec.quantization is not None:
            arguments["quantization_config"] = AutoQuantizationConfig.from_dict(quantization_values(spec.quantization))
        transformer = Transformer(
            str(base.folder),
            max_seq_length=spec.max_seq_length,
            model_kwargs=arguments,
            processor_kwargs={"padding_side": "right", **NO_CODE},
            config_kwargs={**NO_CODE, **first},
            modality_config=PROMPTED if spec.prompt else PLAIN,
            module_output_name="token_embeddings",
        )
    require_all_weights(transformer.model, base.folder, place, **without_pooler(config))
    if spec.pooling == "cls" and any(name.endswith("ForCausalLM") for name in config.architectures or ()):
        found = f"cls, but {config.architectures[0]} reads from left to right: its first token knows no other"
        raise InputError(f"{place}.pooling", found, allowed="lasttoken or mean")
    _check_length(spec, transformer, place)
    tokenizer = transformer.tokenizer
    if tokenizer is None:
        raise InputError(place, "has no tokenizer", allowed="a text model with its tokenizer files")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InputError(place, "its tokenizer has no pad and no eos token")
        tokenizer.pad_token = tokenizer.eos_token  # the attention mask hides it either way
    return transformer


def first_layers(config: Any, layers: int | None, place: str) -> dict[str, Any]:
    """The config's changes that keep the first ``layers`` layers alone (None: no change); the last norm stays.

    Raises InputError when the base has fewer.
    """
    if layers is None:
        return {}
    there = config.num_hidden_layers
    if layers > there:
        raise InputError(f"{place}.layers", f"{layers} exceeds the base's {there}", allowed=f"1 to {there}")
    lists = {name: value for name, value in vars(config).items() if isinstance(value, list) and len(value) == there}
    return {**{name: value[:layers] for name, value in lists.items()}, "num_hidden_layers": layers}


def without_pooler(config: Any) -> dict[str, Any]:
    """The argument that leaves the unused pooler out; a base published without one would get random weights."""
    model_class = MODEL_MAPPING.get(type(config), None)
    takes = isinstance(model_class, type) and "add_pooling_layer" in inspect.signature(model_class).parameters
    return {"add_pooling_layer": False} if takes else {}


def _check_length(spec: Encoder, transformer: Transformer, place: str) -> None:
    """Raise InputError for a recipe whose texts may have more tokens than the base has positions."""
    named = getattr(transformer.config.get_text_config(), "max_position_embeddings", None)
    positions = usable_positions(transformer.model) or named
    if positions and 0 < positions < spec.max_seq_length:
        found = f"max_seq_length {spec.max_seq_length} is more than the {positions} positions that the base has"
        raise InputError(f"{place}.max_seq_length", found, allowed=f"at most {positions}")


def _finished(spec: Encoder, base: Base, place: str) -> SentenceTransformer:
    """A finished encoder with its own modules; nothing is fetched, and no code of its repository runs."""
    require_safetensors(base.folder, place)
    with reading_model(place):
        encoder = SentenceTransformer(str(base.folder), local_files_only=True, model_kwargs=dict(NO_PICKLES), **NO_CODE)
    if prompts := ", ".join(name for name, prompt in encoder.prompts.items() if prompt):
        say(f"base {base.folder.name}: is trained without its prompts ({prompts}), on the texts as they are")
    if isinstance(encoder[0], Transformer):
        with reading_model(place, "cannot read a sentence"):  # a chat template may refuse it
            input_ids(encoder[0], [PROBES[0]])
        _check_length(spec, encoder[0], place)
        encoder.max_seq_length = spec.max_seq_length
    return encoder


def require_trainable(encoder: SentenceTransformer, place: str) -> None:
    """Raise InputError for an encoder that is not trained: an adapter, or one without a transformer or embeddings."""
    kind = type(encoder[0]).__name__
    if not isinstance(encoder[0], Transformer | StaticEmbedding):
        raise InputError(place, f"begins with {kind}, which is not trained", allowed="Transformer, StaticEmbedding")
    if isinstance(encoder[0], Transformer) and has_adapter(encoder):
        raise InputError(place, "is an adapter", allowed="its merged form", hint="sts-dino merge makes one")


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
    """The whole model: the base with the adapter of the folder ``adapter`` added to its weights."""
    encoder = build_encoder(spec.model_copy(update={"quantization": None}), base)
    model: Any = encoder.transformers_model
    encoder[0].model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
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
    """State in a saved module what a plain ``SentenceTransformer(folder)`` uses: no pooler, the base's precision."""
    transformer: Any = model.transformers_model
    arguments: dict[str, Any] = {}
    if has_adapter(model):
        dtype = getattr(transformer, "base_dtype", transformer.dtype)
        arguments["dtype"] = str(dtype).removeprefix("torch.")
        adapter = json.loads((path.parent / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        adapter["base_model_name_or_path"] = transformer.name_or_path
        if isinstance(adapter["target_modules"], list):  # of a set, in any order; a finished adapter may have a pattern
            adapter["target_modules"].sort()
        write_text(path.parent / ADAPTER_CONFIG, json.dumps(adapter, indent=2, sort_keys=True) + "\n")
    if getattr(transformer, "pooler", None) is None:
        arguments |= without_pooler(transformer.config)
    if arguments:
        config = json.loads(path.read_text(encoding="utf-8"))
        config["model_kwargs"] = {**config.get("model_kwargs", {}), **arguments}
        write_text(path, json.dumps(config, indent=4, sort_keys=True) + "\n")


_OUTPUT = {"method": "forward", "method_output_name": "last_hidden_state"}
PLAIN: dict[Any, Any] = {"text": _OUTPUT}  # modality_config: texts as they are, even if the base has a chat template
PROMPTED: dict[Any, Any] = {"text": _OUTPUT, "message": {**_OUTPUT, "format": "flat"}}  # texts through the template
PROBES = (
    "A man is playing a flute.",
    "Dogs",
    "",
    "Wait... what?!",
    '"Quoted," she said.',
    " spaces around ",
    "3.5 cafés in 東京 {{ x }} {% y %}",
    "two\nlines",
)
LONG_PROBE = "Two young women cook red beans in an old blue car on the beach, and nobody minds. "


def set_prompt(transformer: Transformer, prompt: str | None, place: str) -> None:
    """Put ``prompt`` around every sentence; None: sentences as they are (a module made with ``PROMPTED`` or ``PLAIN``).

    Raises InputError naming ``place`` when the prompt does not fit into ``max_seq_length`` or the tokenizer gives other
    ids through a chat template than for the whole string.
    """
    tokenizer: Any = transformer.tokenizer
    if prompt is None:
        tokenizer.chat_template = None
        return
    length, most = len(whole_ids(tokenizer, prompt, "")), transformer.max_seq_length or 0
    if length >= most:
        found, hint = f"the prompt alone has {length} tokens", "shorten the prompt or raise base.max_seq_length"
        raise InputError(f"{place}.prompt", found, allowed=f"fewer than max_seq_length, which is {most}", hint=hint)
    for template in _templates(tokenizer, prompt):
        tokenizer.chat_template = template
        transformer._chat_template_suffix_cache.clear()
        if _is_faithful(transformer, prompt):
            return
    problem = "its tokenizer gives other ids through a chat template than for the whole prompt"
    raise InputError(f"{place}.prompt", problem, hint="use another base, or leave the prompt out")


def whole_ids(tokenizer: Any, prompt: str, sentence: str) -> list[int]:
    """The ids of prompt and sentence as one string, special tokens included, not cut."""
    return list(tokenizer(prompt.replace(PROMPT_TEXT, sentence), truncation=False, verbose=False).input_ids)


def input_ids(transformer: Any, sentences: list[str], truncation: bool = True) -> list[list[int]]:
    """What the model receives for each sentence, padding left out."""
    settings = {} if truncation else {"text": {"truncation": False}}
    features = transformer.preprocess(sentences, processing_kwargs=settings)
    rows = zip(features["input_ids"].tolist(), features["attention_mask"].tolist(), strict=True)
    return [[token for token, seen in zip(*row, strict=True) if seen] for row in rows]


def check_saved_ids(transformer: Transformer, folder: Path) -> None:
    """Raise RunError unless the tokenizer in ``folder`` gives a sentence the ids that it has in ``transformer``."""
    reloaded = copy.copy(transformer)
    reloaded.processor = AutoTokenizer.from_pretrained(folder, local_files_only=True, **NO_CODE)
    reloaded._chat_template_suffix_cache = {}
    sentences = [*PROBES, LONG_PROBE * (transformer.max_seq_length or 1)]
    ids = (input_ids(module, sentences) for module in (transformer, reloaded))
    for sentence, before, after in zip(sentences, *ids, strict=True):
        if before != after:
            problem = f"the saved tokenizer gives {sentence[:40]!r} other ids than the trained encoder had"
            raise RunError(folder, problem, hint="this base's tokenizer does not survive saving: use another base")


def _templates(tokenizer: Any, prompt: str) -> list[str]:
    """Chat templates to try. They name the special tokens that the tokenizer itself puts around a text.

    SentencePiece marks a text's first word with a space, which some tokenizers lose behind a special token.
    """
    encoded = tokenizer(prompt, return_special_tokens_mask=True)
    mask, tokens = encoded["special_tokens_mask"], tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    first, last = mask.index(0), len(mask) - mask[::-1].index(0)
    before, after = prompt.split(PROMPT_TEXT)
    content, end = '{{ messages[-1]["content"] }}', _literal(after + "".join(tokens[last:]))
    return [_literal("".join(tokens[:first]) + space + before) + content + end for space in ("", " ")]


def _literal(text: str) -> str:
    """``text`` as a Jinja string to print: nothing in it is a template."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'{{{{ "{escaped}" }}}}'


def _is_faithful(transformer: Transformer, prompt: str) -> bool:
    """Whether probes get the ids of the whole string, and one that is too long keeps the prompt's end."""
    tokenizer: Any = transformer.tokenizer
    if input_ids(transformer, list(PROBES), truncation=False) != [whole_ids(tokenizer, prompt, x) for x in PROBES]:
        return False
    limit = transformer.max_seq_length or 0
    cut = input_ids(transformer, [LONG_PROBE * limit])[0]
    bare = tokenizer.decode(whole_ids(tokenizer, prompt, ""))
    ending = bare[len(bare) - len(prompt.split(PROMPT_TEXT)[1]) :]
    return len(cut) == limit and bool(tokenizer.decode(cut).endswith(ending))


NAME = "default"  # peft's name for the only adapter
READ_FILES = (".safetensors", ".json", ".model", "merges.txt", "vocab.txt")  # of a base, what loading depends on


def attach(encoder: SentenceTransformer, lora: Lora, repo_id: str | None = None, revision: str | None = None) -> None:
    """Freeze the encoder and put a new adapter, the identity, on its linear layers (all, or those that are named).

    ``repo_id`` and ``revision`` name the base in what is saved (None: a local base, which only a merged release has).
    Raises InputError for layers that the base does not have.
    """
    model: Any = encoder.transformers_model
    linear = [name for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D))]
    for target in lora.target_modules:  # peft passes over a name without a layer as long as another one has some
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            leaves = sorted({name.rsplit(".", 1)[-1] for name in linear})
            hint = did_you_mean(target, leaves)
            raise InputError("lora.target_modules", f"no linear layer {target!r}", allowed=leaves, hint=hint)
    model.base_dtype = model.config.dtype  # before saving or quantization change what the config says
    if getattr(model, "is_quantized", False):
        if model.device.type == "cpu" and getattr(model, "quantization_method", None) == "bitsandbytes":
            hint = "train on a GPU, or leave base.quantization out"  # version 0.50 packs weights at an evaluation
            raise InputError("base.quantization", "bitsandbytes does not train on a CPU", hint=hint)
        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)  # the trainer's argument decides that
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) or "all-linear",
        task_type="FEATURE_EXTRACTION",
    )
    model.add_adapter(config, NAME)
    cast_adapter_dtype(model, NAME)
    # the name waits in the model: with one in its config, peft asks the Hub for the base at every checkpoint
    model.name_or_path, config.base_model_name_or_path, config.revision = repo_id, None, revision


def has_adapter(encoder: SentenceTransformer) -> bool:
    """Whether the encoder is an adapter on a base."""
    return bool(getattr(encoder.transformers_model, "_hf_peft_config_loaded", False))


def check_base_branch(spec: Encoder, place: str) -> None:
    """Raise InputError when the base's branch main is not what ``spec`` pins, in the files that are loaded.

    sentence-transformers loads a released adapter with the base at main.
    """
    assert spec.repo_id is not None
    with reading(spec.repo_id, spec.revision):
        found = [
            HfApi().model_info(spec.repo_id, revision=name, files_metadata=True) for name in (spec.revision, "main")
        ]
    files = [{(item.rfilename, item.blob_id) for item in info.siblings or []} for info in found]
    differ = sorted(name for name, _ in files[0] ^ files[1] if "/" not in name and name.endswith(READ_FILES))
    if differ:
        problem = f"{spec.revision!r} is not the base that an adapter is loaded on: main has another {differ[0]}"
        raise InputError(f"{place}.revision", problem, hint="pin what main is now, or choose lora.release: merged")
