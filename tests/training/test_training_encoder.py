"""The encoder is a stock SentenceTransformer: the same embedding in any batch, adapters, and
prompts as one string.
"""

import gzip
import json

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from sentence_transformers import SentenceTransformer
from tiny_bases import make_llama, make_mlm, make_mlm_tokenizer
from tiny_lm import TEXTS, make_family, make_lm
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from training_inputs import write_recipe
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    CanineConfig,
    CanineModel,
    CanineTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from sts_dino.hub.contract.recipe import Encoder, Lora, ModelRecipe, Vocabulary
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.errors import InputError, RunError
from sts_dino.training.encoder.bases import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    Base,
    _fetch_adapter_base,
    find_base,
)
from sts_dino.training.encoder.encoder import (
    build_encoder,
    check_saved_ids,
    get_input_ids,
    has_adapter,
    save_encoder,
    save_release,
    tokenize_prompted,
)
from sts_dino.training.encoder.static import (
    compute_principal_components,
    cut_tokenizer,
    cut_vocabulary,
    read_vectors,
)
from sts_dino.training.loop.job import prepare
from sts_dino.training.run import main

SENTENCES = [
    "A man is playing a flute.",
    "Dogs.",
    "Two young women cook red beans in an old blue car on the beach.",
]


def make_spec(folder, **changes):
    return Encoder(path=str(folder), license="apache-2.0", **changes)


def make_encoder(folder, lora=None, **changes):
    spec = make_spec(folder, **changes)
    return build_encoder(spec, find_base(spec), lora).eval()


def test_a_base_whose_config_has_no_vocabulary_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    CanineModel(CanineConfig(**sizes, intermediate_size=16)).save_pretrained(tmp_path)
    CanineTokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"cannot be loaded: .*vocab_size"):
        make_encoder(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_an_embedding_does_not_depend_on_its_batch(tmp_path, kind, pooling):
    encoder = make_encoder(make_lm(tmp_path / "lm", kind), pooling=pooling)
    together = encoder.encode(SENTENCES)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    assert np.abs(together - alone).max() <= 1e-5


def test_a_masked_language_model_loses_its_pooler_and_gets_none_at_random(tmp_path, caplog):
    encoder = make_encoder(make_mlm(tmp_path / "mlm"))
    assert encoder.transformers_model.pooler is None
    save_encoder(encoder, tmp_path / "saved")
    caplog.clear()
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert "MISSING" not in caplog.text  # nothing of what is loaded is made up
    assert loaded.transformers_model.pooler is None
    assert np.array_equal(loaded.encode(SENTENCES), encoder.encode(SENTENCES))
    parameters = dict(encoder.named_parameters())
    assert all(torch.equal(value, parameters[name]) for name, value in loaded.named_parameters())


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_embedding_is_the_pooled_last_hidden_state_of_the_base(tmp_path, pooling):
    folder = make_mlm(tmp_path / "mlm")
    encoder = make_encoder(folder, pooling=pooling)
    tokens = AutoTokenizer.from_pretrained(folder)(SENTENCES[0], return_tensors="pt")
    with torch.no_grad():
        states = AutoModelForMaskedLM.from_pretrained(folder).roberta(**tokens).last_hidden_state[0]
    wanted = states.mean(0) if pooling == "mean" else states[0]
    assert np.abs(encoder.encode(SENTENCES)[0] - wanted.numpy()).max() <= 1e-5


def test_a_finished_encoder_is_taken_as_it_is(tmp_path):
    encoder = make_encoder(make_mlm(tmp_path / "mlm"), pooling="cls", max_seq_length=32)
    save_encoder(encoder, tmp_path / "finished")
    spec = make_spec(tmp_path / "finished", modules="sentence-transformer", max_seq_length=16)
    found = build_encoder(spec, find_base(spec))
    assert np.abs(found.encode("Dogs.") - encoder.encode("Dogs.")).max() <= 1e-6
    assert found[1].pooling_mode == "cls" and found.max_seq_length == 16
    before = find_base(spec).sha256
    for name in ("results.json", "repeats.json"):
        (tmp_path / "finished" / name).write_text("{}")
    assert find_base(spec).sha256 == before, "an encoder that is scored is the same base"
    pooling = tmp_path / "finished" / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace("cls", "mean"))
    assert find_base(spec).sha256 != before  # its modules are part of it
    config = tmp_path / "finished" / "config_sentence_transformers.json"
    config.write_text(config.read_text().replace("SentenceTransformer", "CrossEncoder"))
    with pytest.raises(
        InputError, match="is a cross-encoder: it scores pairs and gives no embeddings"
    ):
        find_base(spec)


def test_layers_that_a_base_lacks_are_not_made_at_random(tmp_path):
    config = make_lm(tmp_path / "lm") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(
        InputError, match=r"base: .*lm: its weights lack layers.2.input_layernorm.weight"
    ):
        make_encoder(tmp_path / "lm")


def test_a_base_whose_tokenizer_exceeds_its_embedding_is_refused(tmp_path):
    folder = make_lm(tmp_path / "lm")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["ferry"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(
        InputError,
        match=r"^base: .*lm: its tokenizer gives ids beyond the 330 rows .*: 330 \(ferry\)",
    ):
        find_base(make_spec(folder))


@pytest.mark.parametrize("kind", ["gemma3", "smollm3", "gpt2", "mlm"])
def test_the_first_layers_give_what_they_give_inside_the_whole(tmp_path, kind):
    """Of decoders under their last norm, which stays."""
    base = make_mlm(tmp_path / "lm") if kind == "mlm" else make_family(tmp_path / "lm", kind)
    encoder = make_encoder(base, layers=1)
    assert encoder[0].model.config.num_hidden_layers == 1
    whole = AutoModel.from_pretrained(base).eval()
    features = encoder[0].preprocess(SENTENCES)
    inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
    states = whole(**inputs, output_hidden_states=True).hidden_states[1]
    norm = getattr(whole, "norm", getattr(whole, "ln_f", torch.nn.Identity()))
    mask = inputs["attention_mask"][..., None]
    wanted = (norm(states) * mask).sum(1) / mask.sum(1)
    assert torch.allclose(encoder.encode(SENTENCES, convert_to_tensor=True), wanted, atol=1e-5)


pytest_plugins = ["local_hub"]
LORA = Lora(r=4, alpha=8)
EOL = 'This sentence : "[X]" means in one word:"'
BASES = {"llama": make_llama, "gpt2": lambda folder: make_lm(folder, "gpt2"), "roberta": make_mlm}


PROMPTED = {"pooling": "lasttoken", "prompt": EOL}


def train_a_little(encoder):
    """Give the adapter values that training could have given it."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
    return encoder


def distance(a, b):
    return float(np.abs(a - b).max())


@pytest.mark.parametrize("family", BASES)
def test_a_new_adapter_is_the_identity_and_only_it_is_trained(tmp_path, family):
    base = BASES[family](tmp_path / "base")
    plain, encoder = make_encoder(base, **PROMPTED), make_encoder(base, LORA, **PROMPTED)
    assert distance(plain.encode(SENTENCES), encoder.encode(SENTENCES)) == 0
    assert has_adapter(encoder) and not has_adapter(plain)
    trained = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert not any("pooler" in name or "embed" in name or "lm_head" in name for name in trained)


def test_only_the_adapter_is_saved_and_no_path_of_this_machine(tmp_path):
    base = make_llama(tmp_path / "base")
    save_encoder(train_a_little(make_encoder(base, LORA, **PROMPTED)), tmp_path / "saved")
    save_encoder(make_encoder(base, **PROMPTED), tmp_path / "whole")
    assert not [
        path for path in (tmp_path / "whole").rglob("*.json") if str(tmp_path) in path.read_text()
    ]
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {ADAPTER_CONFIG, ADAPTER_WEIGHTS, "modules.json", "tokenizer.json"} <= names
    assert not names & {"README.md", "model.safetensors", "pytorch_model.bin"}
    assert not [path for path in files if str(tmp_path).encode() in path.read_bytes()]


@pytest.mark.parametrize("family", BASES)
def test_the_merged_form_is_a_plain_model_with_the_adapters_embeddings(tmp_path, family):
    base = BASES[family](tmp_path / "base")
    lora = LORA.model_copy(update={"release": "merged"})
    encoder = train_a_little(make_encoder(base, lora, **PROMPTED))
    spec = make_spec(base, **PROMPTED)
    save_release(encoder, tmp_path / "merged", spec, find_base(spec), lora)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "merged"]
    loaded = SentenceTransformer(str(tmp_path / "merged"))
    assert (
        distance(make_encoder(base, **PROMPTED).encode(SENTENCES), encoder.encode(SENTENCES)) > 1e-2
    )
    assert distance(loaded.encode(SENTENCES), encoder.encode(SENTENCES)) <= 1e-5
    assert not has_adapter(loaded)
    assert not (tmp_path / "merged" / ADAPTER_CONFIG).exists()


def test_a_recipe_whose_base_has_moved_is_refused_before_it_is_trained(
    tmp_path, hub_api, monkeypatch
):
    repo = hub_api.create_repo("acme/moved-before-training").repo_id
    folder = make_llama(tmp_path / "llama")
    commit = hub_api.upload_folder(repo_id=repo, folder_path=folder).oid
    base = {"repo_id": repo, "revision": commit, "license": "mit"}
    recipe = write_recipe(tmp_path, base=base, lora={"r": "4", "alpha": "8"})
    monkeypatch.setattr("sts_dino.training.encoder.encoder.HfApi", lambda: hub_api)
    monkeypatch.setattr(
        "sts_dino.training.loop.job.find_base", lambda spec: Base(folder, commit, "sha256")
    )
    prepare(recipe, tmp_path / "out", None, [])
    hub_api.upload_folder(repo_id=repo, folder_path=make_llama(tmp_path / "other", seed=9))
    with pytest.raises(InputError, match=r"base.revision.*main has another model.safetensors"):
        prepare(recipe, tmp_path / "out", None, [])
    prepare(recipe, tmp_path / "out", None, ["lora.release=merged"])


WRITTEN = [
    "A man is playing a flute.",
    "Dogs.",
    "",
    'He said "stop." Then',
    "3.5 {{ x }} {% raw %} café 東京",
    " a\nb ",
]
LONG = "Two young women cook red beans in an old blue car on the beach. " * 20 + "Dogs run"


def make_sentencepiece(folder, style):
    """A random Llama with a SentencePiece-like vocabulary, as its first releases (legacy) or its
    later ones.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if style == "legacy":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(
        [*TEXTS, EOL], trainers.BpeTrainer(vocab_size=500, special_tokens=specials)
    )
    return make_with(
        tokenizer, folder, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, bos=1
    )


def make_merging(folder):
    """A random Llama whose tokenizer has one token for a full stop with a closing quotation mark,
    as GPT-2's has.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"]
    )
    tokenizer.train_from_iterator([*TEXTS, *['She plays."'] * 50], trainer)
    assert '."' in tokenizer.get_vocab()
    return make_with(tokenizer, folder, {"bos_token": "<s>", "eos_token": "</s>"}, bos=0)


def make_with(tokenizer, folder, names, bos):
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(vocab_size=len(fast), max_position_embeddings=256, **sizes)
    ).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_chatting(folder):
    """A random Qwen3 whose tokenizer comes with a chat template of its own."""
    tokenizer = AutoTokenizer.from_pretrained(make_lm(folder, "qwen3"))
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% endfor %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


FAMILIES = {
    "gpt2": lambda folder: make_lm(folder, "gpt2"),
    "sentencepiece-legacy": lambda folder: make_sentencepiece(folder, "legacy"),
    "sentencepiece": lambda folder: make_sentencepiece(folder, "new"),
    "merging": make_merging,
    "qwen3": make_chatting,
    "roberta": make_mlm,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ids_are_those_of_the_whole_string_with_its_special_tokens(tmp_path, family):
    folder = FAMILIES[family](tmp_path / "base")
    untouched = AutoTokenizer.from_pretrained(folder)
    wanted = [untouched(EOL.replace("[X]", sentence)).input_ids for sentence in WRITTEN]
    encoder = make_encoder(folder, **PROMPTED)
    assert get_input_ids(encoder[0], WRITTEN) == wanted
    assert [get_input_ids(encoder[0], [sentence])[0] for sentence in WRITTEN] == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_sentence_loses_its_end_and_the_prompt_nothing_also_when_saved(tmp_path, family):
    encoder = make_encoder(FAMILIES[family](tmp_path / "base"), **PROMPTED, max_seq_length=48)
    (cut,) = get_input_ids(encoder[0], [LONG])
    whole = tokenize_prompted(encoder.tokenizer, EOL, LONG)
    assert len(cut) == 48 < len(whole)
    kept = next(i for i, (left, right) in enumerate(zip(cut, whole, strict=False)) if left != right)
    tail = cut[kept:]
    # the sentence's first tokens, then the prompt's last ones
    assert tail == whole[len(whole) - len(tail) :]
    text = encoder.tokenizer.decode(tail, skip_special_tokens=True)
    assert '" means in one word:"'.endswith(text) and len(text) >= len('" means in one word:"') - 1
    save_encoder(encoder, tmp_path / "saved")
    loaded, sentences = SentenceTransformer(str(tmp_path / "saved")), [*WRITTEN, LONG]
    assert loaded.max_seq_length == 48 and loaded.tokenizer.padding_side == "right"
    assert get_input_ids(loaded[0], sentences) == get_input_ids(encoder[0], sentences)
    assert np.abs(loaded.encode(sentences) - encoder.encode(sentences)).max() <= 1e-6


@pytest.mark.parametrize(
    "prompt",
    ['C:\\new {{ "x" }} [X] {% if %}', "Sum up: [X]", '[X]\nIn one word: "', "😀 '[X]' 東"],
)
def test_whatever_stands_in_a_prompt_is_text(tmp_path, prompt):
    encoder = make_encoder(make_lm(tmp_path / "base"), pooling="lasttoken", prompt=prompt)
    wanted = [tokenize_prompted(encoder.tokenizer, prompt, sentence) for sentence in WRITTEN]
    assert get_input_ids(encoder[0], WRITTEN) == wanted


def test_without_a_prompt_a_bases_own_chat_template_is_not_used(tmp_path):
    folder = make_chatting(tmp_path / "base")
    wanted = AutoTokenizer.from_pretrained(folder)("Dogs.").input_ids
    encoder = make_encoder(folder, pooling="lasttoken")
    save_encoder(encoder, tmp_path / "saved")
    assert not (tmp_path / "saved" / "chat_template.jinja").exists()
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert get_input_ids(encoder[0], ["Dogs."]) == get_input_ids(loaded[0], ["Dogs."]) == [wanted]


def test_a_tokenizer_that_cannot_carry_the_prompt_is_an_input_error(tmp_path):
    folder = make_merging(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # put behind every text; no text has it as its last token there
    space = tokenizer.convert_tokens_to_ids("Ġ")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A end", special_tokens=[("<s>", 0), ("end", space)]
    )
    tokenizer.save_pretrained(folder)
    with pytest.raises(
        InputError, match=r"prompt: its tokenizer gives other ids through a chat template"
    ):
        make_encoder(folder, **PROMPTED)


def test_a_saved_tokenizer_that_gives_other_ids_is_found(tmp_path):
    encoder = make_encoder(make_lm(tmp_path / "base"), **PROMPTED)
    save_encoder(encoder, tmp_path / "saved")
    check_saved_ids(encoder[0], tmp_path / "saved")
    template = tmp_path / "saved" / "chat_template.jinja"
    template.write_text(template.read_text().replace("one word", "a word"))
    with pytest.raises(
        RunError, match=r"the saved tokenizer gives .* other ids than the trained encoder had"
    ):
        check_saved_ids(encoder[0], tmp_path / "saved")


CORPUS = [
    "Write two sentences that mean the same thing.",
    "A man is playing a flute.",
    "two dogs",
    "the same man",
]
OTHERS = [
    "Zwölf Boxkämpfer 東京 🦜!",
    "a completely different topic on the beach",
    "\n\t 3.5 %",
    "q",
]
BYTES = [f"<0x{number:02X}>" for number in range(256)]


def with_fallback() -> Tokenizer:
    """Byte pair encoding on characters, which falls back to bytes, as Gemma and Llama 2 have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    specials = ["<pad>", "<unk>", "<table>", *BYTES]
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=480, special_tokens=specials)
    )
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = definition["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(definition))


def tokens(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).tokens


# or on bytes
@pytest.mark.parametrize("make", [with_fallback, lambda: make_mlm_tokenizer().backend_tokenizer])
@pytest.mark.parametrize("size", [None, 12])
def test_texts_of_the_corpus_keep_their_tokens_and_all_others_have_some(make, size):
    whole = make()
    smaller, ids = cut_tokenizer(whole, CORPUS, size, "base")
    assert len(ids) == smaller.get_vocab_size() < whole.get_vocab_size() - 30
    assert all(whole.token_to_id(smaller.id_to_token(new)) == old for new, old in enumerate(ids))
    if size is None:
        assert [tokens(smaller, text) for text in CORPUS] == [
            tokens(whole, text) for text in CORPUS
        ]
    for text in (*CORPUS, *OTHERS):
        found = smaller.encode(text, add_special_tokens=False)
        assert found.ids and "<unk>" not in found.tokens
        assert smaller.decode(found.ids, skip_special_tokens=False) == text
    assert smaller.encode("dogs").ids == smaller.encode("dogs", add_special_tokens=False).ids


def test_vectors_are_components_weighted_by_rarity():
    whole = with_fallback()
    weights = torch.randn(whole.get_vocab_size(), 6, generator=torch.Generator().manual_seed(1))
    texts = ["the man " * 30, "two dogs"]
    plain_tokenizer, plain = cut_vocabulary(whole, weights, texts, Vocabulary(path="c.txt"), "base")
    _, ids = cut_tokenizer(whole, texts, None, "base")
    assert torch.equal(plain, weights[ids])
    count = np.zeros(len(ids))
    for text in texts:
        np.add.at(count, plain_tokenizer.encode(text).ids, 1)
    p = count / count.sum()
    _, weighted = cut_vocabulary(whole, weights, texts, Vocabulary(path="c.txt", sif=0.01), "base")
    assert np.allclose(weighted.numpy(), plain.numpy() * (0.01 / (0.01 + p))[:, None], atol=1e-6)
    _, rotated = cut_vocabulary(
        whole, weights, texts, Vocabulary(path="c.txt", dimensions=6), "base"
    )
    assert np.allclose(pdist(rotated), pdist(plain), atol=1e-5)  # nothing is lost
    assert np.allclose(p @ rotated.numpy(), 0, atol=1e-5)
    _, two = cut_vocabulary(whole, weights, texts, Vocabulary(path="c.txt", dimensions=2), "base")
    assert np.allclose(two, rotated[:, :2]) and two.shape == (len(ids), 2)
    spread = [p @ rotated[:, axis].numpy() ** 2 for axis in range(6)]
    assert spread == sorted(spread, reverse=True)
    assert np.isclose(sum(spread), p @ ((plain.numpy() - p @ plain.numpy()) ** 2).sum(1))
    line = np.outer(np.arange(4.0), [3.0, 4.0])
    assert np.allclose(
        np.abs(compute_principal_components(line, np.full(4, 0.25), 1))[:, 0], [7.5, 2.5, 2.5, 7.5]
    )


def recipe(folder, **vocabulary):
    (folder / "corpus.txt").write_text("\n".join(CORPUS) + "\n\n" + CORPUS[0] + "\n")
    base = {"path": str(folder / "lm"), "modules": "static", "license": "mit"}
    cut_to = {"path": str(folder / "corpus.txt"), **vocabulary}
    return write_recipe(folder, base=base | {"vocabulary": cut_to})


def test_a_small_encoder_is_trained_and_loads_as_any_other(tmp_path, capsys):
    path = recipe(tmp_path, size="40", dimensions="16", sif="1e-3")
    main(path, out=tmp_path / "out", dry_run=True)
    assert "static, mean pooling" in capsys.readouterr().out
    main(path, out=tmp_path / "out")
    manifest = require_complete(tmp_path / "out")
    loaded = SentenceTransformer(str(tmp_path / "out"))
    count = loaded[0].num_embeddings
    assert loaded.encode(OTHERS).shape == (4, 16) and 256 < count < 330
    assert manifest.counts["parameters"] == manifest.counts["trained_parameters"] == count * 16
    assert any(name.startswith("vocabulary:corpus.txt:") for name in manifest.inputs)
    assert manifest.provenance["base"]["vocabulary"]["path"] == "corpus.txt"
    assert SentenceTransformer(str(tmp_path / "out.base"))[0].num_embeddings == count


def test_padding_of_a_base_is_no_token_of_the_corpus(tmp_path):
    """Many a tokenizer.json pads a batch; the most frequent token was its padding then."""
    path = recipe(tmp_path, size="2", sif="1e-3")
    file = tmp_path / "lm" / "tokenizer.json"
    encoders = []
    for is_padded in (False, True):
        if is_padded:
            tokenizer = Tokenizer.from_file(str(file))
            tokenizer.enable_padding(pad_id=0, pad_token=tokenizer.id_to_token(0))
            tokenizer.save(str(file))
        spec = load_recipe(path, ModelRecipe).base
        encoders.append(build_encoder(spec, find_base(spec))[0])
    plain, padded = encoders
    assert padded.tokenizer.get_vocab() == plain.tokenizer.get_vocab()
    assert torch.equal(padded.embedding.weight, plain.embedding.weight)


def test_an_error_over_a_key_of_the_base_names_the_key(tmp_path):
    """Its path would read as a part of the key's name."""
    folder = make_mlm(tmp_path / "mlm")
    for key, value in {"max_seq_length": 99_999, "layers": 99}.items():
        spec = make_spec(folder, **{key: value})
        with pytest.raises(InputError, match=rf"^base\.{key}: .*{value}"):
            build_encoder(spec, find_base(spec))


@pytest.mark.parametrize("place", ["../base", "./base", "/home/me/base", "a/b/c", "", None])
def test_an_adapter_whose_base_is_a_path_is_refused(tmp_path, place):
    config = {"base_model_name_or_path": place}
    (tmp_path / ADAPTER_CONFIG).write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"^me: is an adapter for .*, which is not on the Hub"):
        _fetch_adapter_base(tmp_path, "me")


VECTORS = {
    "the": [1, 0, 0],
    "dog": [0, 1, 0],
    "a": [0, 0, 1],
    ".": [1, 1, 1],
    "'s": [9, 9, 9],
    "s": [2, 0, 0],
}
GLOVE = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items())


def write(path, text=GLOVE):
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def word_encoder(path, **changes):
    spec = Encoder(path=str(path), license="pddl", modules="word-vectors", **changes)
    return build_encoder(spec, find_base(spec))


def mean(*words):
    return np.mean([VECTORS[word] for word in words], axis=0)


@pytest.mark.parametrize(("name", "header"), [("glove.txt", ""), ("glove.vec.gz", "6 3\n")])
def test_a_sentence_is_the_mean_of_its_known_words_vectors(tmp_path, name, header):
    encoder = word_encoder(write(tmp_path / name, header + GLOVE))
    assert encoder.get_embedding_dimension() == 3
    found = encoder.encode(
        ["The DOG.", "the dog the xyz", "dog's\n\ta\u00a0dog", "thea dogs asa", ""]
    )
    wanted = [
        mean("the", "dog", "."),
        mean("the", "dog", "the"),
        mean("dog", "s", "a", "dog"),
        [0, 0, 0],
        [0, 0, 0],
    ]
    assert np.allclose(found, wanted)


def test_a_word_may_hold_spaces_and_other_separators(tmp_path):
    words, _ = read_vectors(
        write(tmp_path / "glove.txt", "the 1 2\n. . . 3 4\nx\u2028y 5 6\nz\x85 7 8\r\n")
    )
    assert words == ["the", ". . .", "x\u2028y", "z\x85"]


def test_saved_it_is_a_stock_module_that_is_cut_at_max_seq_length(tmp_path):
    encoder = word_encoder(write(tmp_path / "glove.txt"), max_seq_length=3)
    save_encoder(encoder, tmp_path / "saved")
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    sentences = ["the dog a a a a", "Dog's xyz", "the dog xyz xyz a"]
    assert np.allclose(
        loaded.encode(sentences),
        [mean("the", "dog", "a"), mean("dog", "s"), mean("the", "dog", "a")],
    )
    assert {path.name for path in (tmp_path / "saved").rglob("*.*")} >= {
        "model.safetensors",
        "tokenizer.json",
    }
