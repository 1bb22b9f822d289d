"""Encoders of a recipe: a base with stock pooling, prompt and LoRA adapter, static embeddings, or a
finished SentenceTransformer.

Only stock sentence-transformers modules and safetensors are used, so the released model loads
without code of ours. Padding is on the right: with left padding, GPT-2 would see other positions in
a batch than alone.

A two-sided prompt, e.g. PromptEOL's ``This sentence : "[X]" means in one word:"``, becomes the
tokenizer's chat template. So the model receives the tokens of the whole prompt as one string (Jiang
et al. 2023, section 3). A template in the post-processor would tokenise the sentence alone, and
GPT-2 merges ``."`` to one token. A sentence that is too long loses its own end, never the prompt's.

A LoRA adapter (Hu et al. 2022) is trained in float32 on a frozen base of any precision. Only the
adapter is saved; ``adapter_config.json`` names the base by Hub id and commit. sentence-transformers
6.2 reads that base at main whatever ``revision`` says, so ``check_base_branch`` refuses other pins.
A merged release does not depend on the base.
"""

import copy
import inspect
import json
import logging
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

from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.contract.recipe import PROMPT_TEXT, Encoder, Lora, parse_quantization
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError, RunError, suggest_choice
from sts_dino.hub.untrusted import (
    NO_CODE,
    NO_PICKLES,
    convert_model_errors,
    count_usable_positions,
    require_all_weights,
    require_safetensors,
)
from sts_dino.training.data.objectives import name_key
from sts_dino.training.encoder.bases import ADAPTER_CONFIG, Base
from sts_dino.training.encoder.static import cut_vocabulary, load_word_vectors

logger = logging.getLogger(__name__)

MODULE_CONFIG = "sentence_bert_config.json"
ADAPTER_NAME = "default"  # peft's own name for a single adapter
SIMILARITY_PROMPT = "similarity"  # name of a recipe's prompt in the files of a finished encoder
# files of a base that loading depends on
LOADED_FILE_ENDINGS = (".safetensors", ".json", ".model", "merges.txt", "vocab.txt")
_OUTPUT = {"method": "forward", "method_output_name": "last_hidden_state"}
# values of ``Transformer``'s modality_config: texts as they are, even if the base has a chat
# template; and texts through the template
PLAIN: dict[Any, Any] = {"text": _OUTPUT}
PROMPTED: dict[Any, Any] = {"text": _OUTPUT, "message": {**_OUTPUT, "format": "flat"}}
# sentences whose ids are compared, with what tokenizers treat differently: case, quotation marks,
# spaces, characters outside Latin, Jinja syntax, line breaks, no text at all
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


def build_encoder(
    spec: Encoder, base: Base, lora: Lora | None = None, key: str = "base"
) -> SentenceTransformer:
    """Build an untrained encoder of a recipe.

    Args:
        spec: the encoder's section of the recipe.
        base: its base, found by ``find_base``.
        lora: the adapter, which changes no output before training and freezes the base; None: no
            adapter.
        key: the section's key, which errors name: base or datasets.N.guide.

    Raises InputError when the base cannot be loaded, or prompt, lengths or adapter do not fit it.
    """
    where = f"{key}: {spec.repo_id or spec.path}"
    if spec.modules == "sentence-transformer":
        return _load_sentence_transformer(spec, base, where)
    if spec.modules == "word-vectors":
        modules: list[nn.Module] = [load_word_vectors(base.folder, spec.max_seq_length)]
    elif spec.modules == "static":
        modules = [_build_static(_load_transformer(spec, base, where), spec, base, where)]
    else:
        transformer = _load_transformer(spec, base, where)
        set_prompt(transformer, spec.prompt, where)
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), spec.pooling)]
    encoder = SentenceTransformer(modules=modules, similarity_fn_name="cosine")
    if lora is not None:
        add_adapter(encoder, lora, spec.repo_id, base.commit)
    return encoder


def _load_transformer(spec: Encoder, base: Base, where: str) -> Transformer:
    """Load the base with its tokenizer, in the recipe's precision.

    Raises InputError when transformers cannot load it, when a weight is missing, when the tokenizer
    has neither a pad nor an eos token, and when layers, pooling or length do not fit the base.
    ``where``: the encoder that errors name.
    """
    # The model, without its pooler and without the layers that the recipe leaves out.
    with convert_model_errors(where):
        config = AutoConfig.from_pretrained(base.folder, **NO_CODE)
        arguments: dict[str, Any] = {"dtype": spec.dtype, **NO_PICKLES, **drop_pooler(config)}
        if spec.quantization is not None:
            arguments["quantization_config"] = AutoQuantizationConfig.from_dict(
                parse_quantization(spec.quantization)
            )
        transformer = Transformer(
            str(base.folder),
            max_seq_length=spec.max_seq_length,
            model_kwargs=arguments,
            processor_kwargs={"padding_side": "right", **NO_CODE},
            config_kwargs={**NO_CODE, **select_first_layers(config, spec.layers, where)},
            modality_config=PROMPTED if spec.prompt else PLAIN,
            module_output_name="token_embeddings",
        )
    require_all_weights(transformer.model, base.folder, where, **drop_pooler(config))

    # Check that pooling and length fit the model. A causal model's first token attends to itself
    # alone.
    is_causal = any(name.endswith("ForCausalLM") for name in config.architectures or ())
    if spec.pooling == "cls" and is_causal:
        raise InputError(
            name_key(where, "pooling"),
            f"cls, but {config.architectures[0]} reads from left to right: "
            "its first token knows no other",
            allowed="lasttoken or mean",
        )
    _check_length(spec, transformer, where)

    # The tokenizer needs a padding token.
    tokenizer: Any = transformer.tokenizer  # not None: ``find_base`` checks that it can be loaded
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InputError(where, "its tokenizer has no pad and no eos token")
        tokenizer.pad_token = tokenizer.eos_token  # the attention mask hides it either way
    return transformer


def select_first_layers(config: Any, layers: int | None, where: str) -> dict[str, Any]:
    """Return the keyword arguments of a config that keep only the first ``layers`` layers.

    The norm after the last layer stays. Lists of the config with one value for each layer (e.g.
    layer_types) are cut, too. ``layers`` None: all layers, so an empty dict is returned. Raises
    InputError naming ``where`` when the base has fewer layers.
    """
    if layers is None:
        return {}
    count = config.num_hidden_layers
    if layers > count:
        raise InputError(
            name_key(where, "layers"),
            f"{layers} exceeds the base's {count}",
            allowed=f"1 to {count}",
        )
    arguments: dict[str, Any] = {"num_hidden_layers": layers}
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == count:
            arguments[name] = value[:layers]
    return arguments


def drop_pooler(config: Any) -> dict[str, Any]:
    """Return the keyword argument that loads the model of ``config`` without a pooler.

    Returns an empty dict when the model's class has no such argument. No encoder here uses the
    pooler, and transformers would give random weights to a pooler that the base's files lack.
    """
    model_class = MODEL_MAPPING.get(type(config), None)
    # None for a config without a class; a tuple for one with several classes, e.g. Funnel's.
    if not isinstance(model_class, type):
        return {}
    if "add_pooling_layer" not in inspect.signature(model_class).parameters:
        return {}
    return {"add_pooling_layer": False}


def _check_length(spec: Encoder, transformer: Transformer, where: str) -> None:
    """Raise InputError when ``max_seq_length`` is more than the base's number of positions.

    A base without a known number, e.g. with relative positions, passes.
    """
    positions = count_usable_positions(transformer.model)
    if not positions:
        config = transformer.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None)
    # XLNet's -1 stands for any number of positions.
    if positions and 0 < positions < spec.max_seq_length:
        raise InputError(
            name_key(where, "max_seq_length"),
            f"max_seq_length {spec.max_seq_length} is more than the {positions} positions "
            "that the base has",
            allowed=f"at most {positions}",
        )


def _load_sentence_transformer(spec: Encoder, base: Base, where: str) -> SentenceTransformer:
    """Load a finished SentenceTransformer; download nothing, run no code from its folder.

    The recipe's prompt becomes the encoder's default prompt, which is saved with it. A Transformer
    gets the recipe's ``max_seq_length``. Logs which of the encoder's prompts the training uses.
    Raises InputError when the encoder cannot be loaded, has no safetensors weights, cannot read a
    sentence, or has fewer positions than ``max_seq_length``. ``where``: its name in errors.
    """
    require_safetensors(base.folder, where)
    with convert_model_errors(where):
        encoder = SentenceTransformer(
            str(base.folder), local_files_only=True, model_kwargs=dict(NO_PICKLES), **NO_CODE
        )
    if spec.prompt is not None:
        # A finished encoder takes prompts before the text alone, so the recipe's ends in [X].
        encoder.prompts[SIMILARITY_PROMPT] = spec.prompt.removesuffix(PROMPT_TEXT)
        encoder.default_prompt_name = SIMILARITY_PROMPT

    # Report the prompts.
    prompts = [name for name, prompt in encoder.prompts.items() if prompt]
    default = get_default_prompt(encoder)
    if default:
        logger.info(f"base {base.folder.name}: is trained with its default prompt {default!r}")
    elif prompts:
        logger.info(
            f"base {base.folder.name}: is trained without its prompts ({', '.join(prompts)}), "
            "on the texts as they are"
        )

    # Set the length; static embeddings have none of their own.
    if isinstance(encoder[0], Transformer):
        with convert_model_errors(where, "cannot read a sentence"):  # a chat template may refuse it
            get_input_ids(encoder[0], [PROBES[0]])
        _check_length(spec, encoder[0], where)
        encoder.max_seq_length = spec.max_seq_length
    return encoder


def get_default_prompt(encoder: SentenceTransformer) -> str | None:
    """Return the prompt that ``encode`` puts before each text by default; None for no prompt."""
    return encoder.prompts.get(encoder.default_prompt_name or "") or None


def require_trainable(encoder: SentenceTransformer, where: str) -> None:
    """Raise InputError naming ``where`` for a finished encoder that this project does not train.

    It trains no encoder with an adapter, and none whose first module is neither a Transformer nor a
    StaticEmbedding.
    """
    if not isinstance(encoder[0], Transformer | StaticEmbedding):
        raise InputError(
            where,
            f"begins with {type(encoder[0]).__name__}, which is not trained",
            allowed="Transformer, StaticEmbedding",
        )
    if isinstance(encoder[0], Transformer) and has_adapter(encoder):
        raise InputError(
            where, "is an adapter", allowed="its merged form", hint="sts-dino merge makes one"
        )


def _build_static(
    transformer: Transformer, spec: Encoder, base: Base, where: str
) -> StaticEmbedding:
    """Build a static encoder: a text's embedding is the mean of its tokens' input embeddings.

    With ``spec.vocabulary``, ``cut_vocabulary`` cuts the tokens to those that the corpus needs.
    Raises InputError naming ``where`` for a slow tokenizer, and for a vocabulary that cannot be
    cut.
    """
    if not isinstance(transformer.tokenizer, PreTrainedTokenizerFast):
        raise InputError(where, "a static encoder needs a fast tokenizer")
    tokenizer = transformer.tokenizer.backend_tokenizer
    weights = transformer.model.get_input_embeddings().weight
    assert isinstance(weights, torch.Tensor)
    weights = weights.detach().clone()
    if spec.vocabulary is not None and base.corpus is not None:
        # The tokens of whole texts are counted, without padding.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        texts = base.corpus.train["anchor"][:]
        tokenizer, weights = cut_vocabulary(tokenizer, weights, texts, spec.vocabulary, where)
    tokenizer.enable_truncation(spec.max_seq_length)  # stays in tokenizer.json
    return StaticEmbedding(tokenizer, embedding_weights=weights)


def has_dropout(encoder: SentenceTransformer) -> bool:
    """Return whether the encoder has dropout, so that a text's embedding varies in training."""
    for layer in encoder.modules():
        if isinstance(layer, nn.Dropout) and layer.p > 0:
            return True
        # Attention kernels drop scores by a rate, without a Dropout layer.
        rate = getattr(layer, "attention_dropout", 0.0)
        if isinstance(rate, float) and rate > 0:
            return True
    return False


def save_release(
    encoder: SentenceTransformer, folder: Path, spec: Encoder, base: Base, lora: Lora | None
) -> None:
    """Write to ``folder`` what the recipe releases: the encoder, its adapter, or both merged.

    A merge loads the base again in ``spec.dtype``, so that no quantization rounds its weights. It
    uses a temporary folder FOLDER.adapter. An earlier ``folder`` is replaced. ``lora`` None: the
    encoder has no adapter.

    Raises RunError when the saved tokenizer gives other ids, InputError when the base of a merge
    cannot be loaded again.
    """
    if lora is None or lora.release == "adapter":
        save_encoder(encoder, folder)
        return
    adapter = folder.with_name(f"{folder.name}.adapter")
    save_encoder(encoder, adapter)
    save_encoder(merge_adapter(spec, base, adapter), folder)
    shutil.rmtree(adapter)


def merge_adapter(spec: Encoder, base: Base, adapter: Path) -> SentenceTransformer:
    """Return the base, in ``spec.dtype``, with the weights of an adapter added to its own.

    ``adapter``: the folder of the adapter. A quantization of ``spec`` is left out. Raises
    InputError when the base cannot be loaded.
    """
    encoder = build_encoder(spec.model_copy(update={"quantization": None}), base)
    model: Any = encoder.transformers_model
    encoder[0].model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    return encoder


def save_encoder(model: SentenceTransformer, folder: Path) -> None:
    """Write a loadable encoder to ``folder``, without upstream's README; replace an earlier folder.

    A killed call can leave FOLDER.tmp, and no ``folder``. An encoder with an adapter is written
    without its base. Raises RunError when the saved tokenizer gives other ids than the model's.
    """
    temporary = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(str(temporary), create_model_card=False, safe_serialization=True)
    if isinstance(model[0], Transformer):
        _write_loading_arguments(model, temporary)
        check_saved_ids(model[0], temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def _write_loading_arguments(model: SentenceTransformer, folder: Path) -> None:
    """Write the arguments with which a plain ``SentenceTransformer(folder)`` loads equal weights.

    They become ``model_kwargs`` of ``sentence_bert_config.json``: for a model without a pooler the
    argument that loads none, and for an adapter the base's dtype. An adapter's
    ``adapter_config.json`` also gets the base's name, and its target modules are sorted. ``folder``
    holds the saved encoder.
    """
    transformer: Any = model.transformers_model
    arguments: dict[str, Any] = {}
    if has_adapter(model):
        # ``add_adapter`` has kept the base's dtype: saving and quantization change the config's.
        dtype = getattr(transformer, "base_dtype", transformer.dtype)
        arguments["dtype"] = str(dtype).removeprefix("torch.")
        path = folder / ADAPTER_CONFIG
        adapter = json.loads(path.read_text(encoding="utf-8"))
        adapter["base_model_name_or_path"] = transformer.name_or_path
        # peft writes a set in no fixed order. An adapter of another tool may have a pattern.
        if isinstance(adapter["target_modules"], list):
            adapter["target_modules"].sort()
        write_text(path, json.dumps(adapter, indent=2, sort_keys=True) + "\n")
    if getattr(transformer, "pooler", None) is None:
        arguments |= drop_pooler(transformer.config)
    if arguments:
        path = folder / MODULE_CONFIG
        config = json.loads(path.read_text(encoding="utf-8"))
        config["model_kwargs"] = {**config.get("model_kwargs", {}), **arguments}
        write_text(path, json.dumps(config, indent=4, sort_keys=True) + "\n")


def set_prompt(transformer: Transformer, prompt: str | None, where: str) -> None:
    """Set the tokenizer's chat template, so that every sentence is read inside ``prompt``.

    ``prompt`` None removes the template: sentences are read as they are. ``transformer`` was loaded
    with the modality_config ``PROMPTED``, or ``PLAIN`` for None. Raises InputError naming ``where``
    when the prompt leaves no token of ``max_seq_length`` for a sentence, when the chat template
    gives other ids than prompt and sentence tokenised as one text, and when a sentence that is too
    long would lose the prompt's end.
    """
    tokenizer: Any = transformer.tokenizer
    if prompt is None:
        tokenizer.chat_template = None
        return
    length = len(tokenize_prompted(tokenizer, prompt, ""))
    most = transformer.max_seq_length or 0
    if length >= most:
        raise InputError(
            name_key(where, "prompt"),
            f"the prompt alone has {length} tokens",
            allowed=f"fewer than max_seq_length, which is {most}",
            hint=f"shorten the prompt or raise {name_key(where, 'max_seq_length')}",
        )
    # Try the template without, then with a space before the prompt: SentencePiece puts a space
    # before a text's first word, and some tokenizers leave it out after a special token.
    for space in ("", " "):
        tokenizer.chat_template = make_chat_template(tokenizer, prompt, space)
        transformer._chat_template_suffix_cache.clear()  # it has the earlier template's end
        if _is_faithful(transformer, prompt):
            return
    raise InputError(
        name_key(where, "prompt"),
        "its tokenizer gives other ids through a chat template than for the whole prompt",
        hint="use another base, or leave the prompt out",
    )


def tokenize_prompted(tokenizer: Any, prompt: str, sentence: str) -> list[int]:
    """Return the ids of the prompt with ``sentence`` in place of [X], tokenised as one string.

    Special tokens are included; nothing is truncated.
    """
    text = prompt.replace(PROMPT_TEXT, sentence)
    return list(tokenizer(text, truncation=False, verbose=False).input_ids)


def get_input_ids(
    transformer: Any, sentences: list[str], truncation: bool = True
) -> list[list[int]]:
    """Return the token ids that the model receives for each sentence, without padding.

    ``truncation``: whether the ids are cut to ``max_seq_length``.
    """
    settings = {} if truncation else {"text": {"truncation": False}}
    features = transformer.preprocess(sentences, processing_kwargs=settings)
    masks = features["attention_mask"].bool()
    return [ids[mask].tolist() for ids, mask in zip(features["input_ids"], masks, strict=True)]


def check_saved_ids(transformer: Transformer, folder: Path) -> None:
    """Raise RunError unless the tokenizer saved in ``folder`` gives the ids of ``transformer``'s.

    The ids of ``PROBES`` and of one sentence that is too long are compared.
    """
    reloaded = copy.copy(transformer)
    reloaded.processor = AutoTokenizer.from_pretrained(folder, local_files_only=True, **NO_CODE)
    reloaded._chat_template_suffix_cache = {}  # not shared with ``transformer``
    sentences = [*PROBES, LONG_PROBE * (transformer.max_seq_length or 1)]
    trained_ids = get_input_ids(transformer, sentences)
    saved_ids = get_input_ids(reloaded, sentences)
    for sentence, trained, saved in zip(sentences, trained_ids, saved_ids, strict=True):
        if trained != saved:
            raise RunError(
                folder,
                f"the saved tokenizer gives {sentence[:40]!r} other ids "
                "than the trained encoder had",
                hint="this base's tokenizer does not survive saving: use another base",
            )


def make_chat_template(tokenizer: Any, prompt: str, space: str) -> str:
    """Make the chat template of a prompt, which prints the last message's text in place of [X].

    ``space`` ("" or " ") comes before the prompt's first word. The template has the special tokens
    that the tokenizer puts around a plain text, because it puts none around a template's text.
    """
    # The special tokens before the prompt's first token and after its last one.
    encoded = tokenizer(prompt, return_special_tokens_mask=True)
    is_special = encoded["special_tokens_mask"]
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    first = is_special.index(0)
    end = len(is_special) - is_special[::-1].index(0)
    tokens_before = "".join(tokens[:first])
    tokens_after = "".join(tokens[end:])

    prefix, suffix = prompt.split(PROMPT_TEXT)
    opening = make_jinja_string(tokens_before + space + prefix)
    closing = make_jinja_string(suffix + tokens_after)
    return opening + '{{ messages[-1]["content"] }}' + closing


def make_jinja_string(text: str) -> str:
    """Return a Jinja expression that prints ``text`` as it is, template syntax included."""
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}"


def _is_faithful(transformer: Transformer, prompt: str) -> bool:
    """Return whether the chat template gives sentences the ids of the whole prompt as one string.

    All ids of ``PROBES`` must be equal. A sentence that is too long must keep the prompt's end.
    """
    tokenizer: Any = transformer.tokenizer
    expected = [tokenize_prompted(tokenizer, prompt, sentence) for sentence in PROBES]
    if get_input_ids(transformer, list(PROBES), truncation=False) != expected:
        return False

    # The end of the prompt, special tokens included, as the tokenizer decodes it. A sentence that
    # is too long must be cut to exactly ``max_seq_length`` tokens, with this end.
    suffix = prompt.split(PROMPT_TEXT)[1]
    decoded_prompt = tokenizer.decode(tokenize_prompted(tokenizer, prompt, ""))
    ending = decoded_prompt[len(decoded_prompt) - len(suffix) :]
    limit = transformer.max_seq_length or 0
    truncated = get_input_ids(transformer, [LONG_PROBE * limit])[0]
    return len(truncated) == limit and bool(tokenizer.decode(truncated).endswith(ending))


def add_adapter(
    encoder: SentenceTransformer,
    lora: Lora,
    repo_id: str | None = None,
    revision: str | None = None,
) -> None:
    """Freeze the encoder in place, and put a new LoRA adapter on its linear layers.

    ``repo_id`` and ``revision`` name the base in the saved adapter; None: a local base, whose
    adapter is released merged. The adapter's random weights come from torch's generator. Raises
    InputError for a target that names no linear layer, and for a bitsandbytes base on a CPU.
    """
    model: Any = encoder.transformers_model
    _require_linear_layers(model, lora.target_modules)

    # Keep the dtype that the adapter names: saving and quantization change the config's.
    model.base_dtype = model.config.dtype
    if getattr(model, "is_quantized", False):
        method = getattr(model, "quantization_method", None)
        if model.device.type == "cpu" and method == "bitsandbytes":
            # bitsandbytes 0.50 packs the weights at an evaluation
            raise InputError(
                "base.quantization",
                "bitsandbytes does not train on a CPU",
                hint="train on a GPU, or leave base.quantization out",
            )
        # Gradient checkpointing is the trainer's argument.
        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)

    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) or "all-linear",
        task_type="FEATURE_EXTRACTION",
    )
    model.add_adapter(config, ADAPTER_NAME)
    cast_adapter_dtype(model, ADAPTER_NAME)
    # ``_write_loading_arguments`` reads the name from the model: with a name in the adapter's
    # config, peft asks the Hub for the base at every checkpoint.
    model.name_or_path = repo_id
    config.base_model_name_or_path = None
    config.revision = revision


def _require_linear_layers(model: nn.Module, targets: tuple[str, ...]) -> None:
    """Raise InputError for a target that names no linear layer of the model.

    A target is the last part, or the last parts, of a layer's dotted name. peft ignores a target
    that names no layer when another target names one.
    """
    layers = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)
    ]
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            allowed = sorted({name.rsplit(".", 1)[-1] for name in layers})
            raise InputError(
                "lora.target_modules",
                f"no linear layer {target!r}",
                allowed=allowed,
                hint=suggest_choice(target, allowed),
            )


def has_adapter(encoder: SentenceTransformer) -> bool:
    """Return whether the encoder has an adapter on a base."""
    return bool(getattr(encoder.transformers_model, "_hf_peft_config_loaded", False))


def check_base_branch(spec: Encoder, where: str) -> None:
    """Raise InputError when main has another base than the revision that ``spec`` pins.

    sentence-transformers loads a released adapter with the base at main. Only the files that
    loading depends on (``LOADED_FILE_ENDINGS``) are compared. ``where``: the recipe's key of the
    base, which the error names. Raises InputError for an unknown repository or revision, RunError
    when the Hub does not answer.
    """
    assert spec.repo_id is not None
    with convert_read_errors(spec.repo_id, spec.revision):
        pinned_files = _list_files(spec.repo_id, spec.revision)
        main_files = _list_files(spec.repo_id, "main")
    # Only files at the top level are loaded. ^ gives the (path, hash) that only one of both has.
    different = {name for name, _ in pinned_files ^ main_files if "/" not in name}
    changed = sorted(name for name in different if name.endswith(LOADED_FILE_ENDINGS))
    if changed:
        raise InputError(
            f"{where}.revision",
            f"{spec.revision!r} is not the base that an adapter is loaded on: "
            f"main has another {changed[0]}",
            hint="pin what main is now, or choose lora.release: merged",
        )


def _list_files(repo_id: str, revision: str | None) -> set[tuple[str, str | None]]:
    """Return a set of (path, Git hash of the content): the files of a model on the Hub.

    ``revision`` None: main. Errors of the Hub's client pass unchanged.
    """
    info = HfApi().model_info(repo_id, revision=revision, files_metadata=True)
    return {(file.rfilename, file.blob_id) for file in info.siblings or []}
