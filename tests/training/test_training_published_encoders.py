"""Published encoders of each family at tiny size, with random weights and the files of the Hub.

Scores, training and the saved encoder give the embeddings that sentence-transformers gives for the
same folder: the prompt, the pooling, the padding and the normalisation are the family's own.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sentence_transformers import SentenceTransformer
from tiny_lm import byte_level_bpe
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from training_inputs import STS_DATA, WORDS, sts_rows, write_dataset, write_recipe
from transformers import (
    AutoModel,
    BertTokenizerFast,
    MPNetTokenizerFast,
    PreTrainedTokenizerFast,
    XLMRobertaTokenizerFast,
)
from transformers.models.auto.configuration_auto import AutoConfig

from sts_dino.eval.encoders.embeddings import Embeddings
from sts_dino.eval.encoders.load import load_encoder
from sts_dino.hub.contract.recipe import Encoder
from sts_dino.proposals.recipes import choose_base
from sts_dino.training.encoder.bases import find_base
from sts_dino.training.encoder.encoder import build_encoder, get_default_prompt, save_encoder
from sts_dino.training.loop.trainer import TextCollator
from sts_dino.training.run import main

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 130,
}
DECODER_SIZES = {"num_key_value_heads": 1, "head_dim": 16}
TEXTS = [
    "A man plays the flute.",
    "dog",
    "Two young women cook red beans in an old blue car on the beach, and nobody minds it.",
    "",
    "an old car runs " * 40,  # longer than the encoder reads
]
MODULE = "sentence_transformers.models."
QUERY = "Instruct: Given a web search query, retrieve relevant passages\nQuery:"


def word_pieces(first: tuple[str, ...]) -> dict[str, int]:
    """A vocabulary of words and letters, which begins with the special tokens."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*first, *WORDS, ".", ",", ":", *letters, *(f"##{letter}" for letter in letters)]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def bert_tokenizer() -> PreTrainedTokenizerFast:
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    return BertTokenizerFast(vocab=word_pieces(special), do_lower_case=True)


def mpnet_tokenizer() -> PreTrainedTokenizerFast:
    special = ("<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>")
    return MPNetTokenizerFast(vocab=word_pieces(special), do_lower_case=True)


def sentence_pieces() -> list[tuple[str, float]]:
    """Pieces with scores, as of a SentencePiece model, learned from ``TEXTS``."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator([*TEXTS, "query: passage: "] * 3, trainer)
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def xlmr_tokenizer() -> PreTrainedTokenizerFast:
    return XLMRobertaTokenizerFast(vocab=[*sentence_pieces(), ("<mask>", 0.0)])


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = byte_level_bpe(["<|endoftext|>"])
    tokenizer.post_processor = TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    names = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names)


def gemma_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Replace("▁", " ")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **names)


@dataclass(frozen=True)
class Family:
    """A published encoder: its architecture, tokenizer, modules and prompts."""

    architecture: str
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    pooling: str
    normalised: bool = True
    dense: tuple[int, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    default: str | None = None
    config: dict[str, object] = field(default_factory=dict)


FAMILIES = {
    "bge-small-en-v1.5": Family("bert", bert_tokenizer, "cls_token"),
    "gte-small": Family("bert", bert_tokenizer, "mean_tokens", normalised=False),
    # its files declare no prompts
    "e5-small-v2": Family("bert", bert_tokenizer, "mean_tokens"),
    # as sts-dino lm writes its prompts
    "multilingual-e5-small": Family(
        "bert",
        xlmr_tokenizer,
        "mean_tokens",
        prompts={"query": "query: ", "passage": "passage: "},
        default="query",
    ),
    "Qwen3-Embedding-0.6B": Family(
        "qwen3",
        qwen_tokenizer,
        "lasttoken",
        prompts={"query": QUERY, "document": ""},
        config={**DECODER_SIZES, "pad_token_id": None},
    ),
    "embeddinggemma-300m": Family(
        "gemma3_text",
        gemma_tokenizer,
        "mean_tokens",
        dense=(48, 32),
        prompts={
            "query": "task: search result | query: ",
            "document": "title: none | text: ",
            "STS": "task: sentence similarity | query: ",
        },
        default="STS",
        config={**DECODER_SIZES, "use_bidirectional_attention": True, "sliding_window": 16},
    ),
    "all-mpnet-base-v2": Family("mpnet", mpnet_tokenizer, "mean_tokens"),
}


def publish(folder: Path, family: Family) -> Path:
    """Write a random encoder with the files that the family's repository has."""
    # The network
    tokenizer = family.tokenizer()
    settings = {**SIZES, "vocab_size": len(tokenizer)}
    for name in ("pad_token_id", "eos_token_id", "bos_token_id"):
        settings[name] = getattr(tokenizer, name)
    settings |= family.config
    torch.manual_seed(0)
    network = AutoModel.from_config(AutoConfig.for_model(family.architecture, **settings))
    with torch.no_grad():  # larger weights, so that texts have embeddings far from each other
        for parameter in network.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})

    # The modules behind it
    names = ["Transformer", "Pooling"]
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    pooling = {f"pooling_mode_{mode}": mode == family.pooling for mode in modes}
    facts = {"word_embedding_dimension": 32, **pooling, "include_prompt": True}
    write_json(folder / "1_Pooling" / "config.json", facts)
    width = 32
    for number, dimension in enumerate(family.dense, 2):
        from sentence_transformers.sentence_transformer.modules import Dense

        identity = torch.nn.Identity()
        dense = Dense(width, dimension, bias=False, activation_function=identity)
        (folder / f"{number}_Dense").mkdir()
        dense.save(str(folder / f"{number}_Dense"))
        names.append("Dense")
        width = dimension
    if family.normalised:
        names.append("Normalize")
    modules = []
    for number, name in enumerate(names):
        path = f"{number}_{name}" if number else ""
        modules.append({"idx": number, "name": str(number), "path": path, "type": MODULE + name})
    write_json(folder / "modules.json", modules)
    if family.prompts:
        prompts = {"prompts": family.prompts, "default_prompt_name": family.default}
        write_json(folder / "config_sentence_transformers.json", prompts)
    return folder


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def embed_alone(folder: Path, prompt: str = "") -> np.ndarray:
    """The embeddings of ``TEXTS`` by sentence-transformers, one text at a time: no padding."""
    encoder = SentenceTransformer(str(folder))
    return np.stack([encoder.encode(prompt + text, prompt="") for text in TEXTS])


def describe(folder: Path) -> tuple:
    """What of an encoder decides its embeddings beside its weights."""
    encoder = SentenceTransformer(str(folder))
    prompts = {name: prompt for name, prompt in encoder.prompts.items() if prompt}
    modules = [type(module).__name__ for module in encoder]
    pooling = (encoder[1].pooling_mode, encoder[1].include_prompt)
    side = encoder.tokenizer.padding_side
    return prompts, encoder.default_prompt_name, modules, pooling, side, encoder.max_seq_length


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_training_and_the_saved_encoder_read_texts_as_the_family_does(name, tmp_path):
    family = FAMILIES[name]
    folder = publish(tmp_path / name, family)
    prompt = family.prompts.get(family.default or "", "")
    expected = embed_alone(folder, prompt)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3
    norms = np.linalg.norm(expected, axis=1)
    assert np.allclose(norms, 1, atol=1e-5) == family.normalised
    assert np.allclose(SentenceTransformer(str(folder)).encode(TEXTS), expected, atol=1e-5)

    # Scores, in a batch of texts of different lengths
    with Embeddings(load_encoder(str(folder)), cache=None) as embeddings:
        assert np.allclose(embeddings.embed(TEXTS), expected, atol=1e-5)

    # What a training reads
    base = {"path": str(folder), "license": "mit", "modules": "sentence-transformer"}
    spec = Encoder(**base, max_seq_length=64)
    encoder = build_encoder(spec, find_base(spec)).eval()
    collator = TextCollator(encoder.preprocess, prompts=get_default_prompt(encoder))
    features = collator([{"sentence1": text} for text in TEXTS])
    prefix = "sentence1_"
    inputs = {key[len(prefix) :]: features[key] for key in features if key.startswith(prefix)}
    with torch.no_grad():
        read = encoder(inputs)["sentence_embedding"].numpy()
    assert np.allclose(read, expected, atol=1e-5)

    # A training of one step that hardly changes a weight, and the files that it saves
    write_dataset(tmp_path / "pairs", {"train": sts_rows(16), "validation": sts_rows(8, seed=1)})
    arguments = {"learning_rate": "1e-12", "max_steps": "1", "report_to": "none"}
    data = {**STS_DATA, "path": str(tmp_path / "pairs"), "license": "mit"}
    (tmp_path / "lm").mkdir()  # no other base is needed
    recipe = write_recipe(
        tmp_path, base={**base, "max_seq_length": "64"}, datasets=[data], arguments=arguments
    )
    main(recipe, out=tmp_path / "out")
    for saved in (tmp_path / "out", tmp_path / "out.base"):
        assert describe(saved) == describe(folder)
        assert np.allclose(SentenceTransformer(str(saved)).encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["e5-small-v2", "Qwen3-Embedding-0.6B"])
def test_the_prompt_of_a_recipe_becomes_the_default_prompt_of_the_encoder(name, tmp_path):
    folder = publish(tmp_path / name, FAMILIES[name])
    base = {"path": str(folder), "license": "mit", "modules": "sentence-transformer"}
    spec = Encoder(**base, max_seq_length=64, prompt="query: [X]")
    encoder = build_encoder(spec, find_base(spec))
    save_encoder(encoder, tmp_path / "saved")
    expected = embed_alone(folder, "query: ")
    assert np.allclose(
        SentenceTransformer(str(tmp_path / "saved")).encode(TEXTS), expected, atol=1e-5
    )
    with Embeddings(load_encoder(str(tmp_path / "saved")), cache=None) as embeddings:
        assert np.allclose(embeddings.embed(TEXTS), expected, atol=1e-5)
    assert get_default_prompt(encoder) == "query: "
    kept = FAMILIES[name].prompts.get("query", "")
    assert encoder.prompts["query"] == kept  # of a search


@pytest.mark.parametrize(
    ("name", "prompts", "prompt"),
    [
        ("e5-small-v2", {}, "query: [X]"),
        ("multilingual-e5-base", {"query": ""}, "query: [X]"),
        ("e5-small-v2", {"query": "query: "}, None),  # its own files decide
        ("multilingual-e5-large-instruct", {}, None),
        ("bge-small-en-v1.5", {}, None),
        ("gte-small", {}, None),
        ("e5x-small", {}, None),
    ],
)
def test_an_encoder_is_proposed_with_the_prompt_of_its_family(name, prompts, prompt, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    write_json(folder / "modules.json", [])
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts})
    section = choose_base(str(folder), "mit", {}).section
    assert section.get("prompt") == prompt
    Encoder.model_validate(section)


def test_the_prompt_of_a_finished_encoder_stands_before_the_sentence():
    facts = {"path": "encoder", "license": "mit", "modules": "sentence-transformer"}
    with pytest.raises(ValidationError, match=r"ends in \[X\]"):
        Encoder(**facts, prompt='This sentence : "[X]" means')
    with pytest.raises(ValidationError, match="a prompt needs modules"):
        Encoder(**{**facts, "modules": "static"}, prompt="query: [X]")
