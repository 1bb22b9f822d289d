"""The model receives the tokens of prompt and sentence as one string, also after saving, also cut."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_bases import make_mlm
from tiny_lm import TEXTS, make_lm
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hub.contract.recipe import Encoder
from hub.errors import InputError, RunError
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder, check_saved_ids, input_ids, save_encoder, whole_ids

EOL = 'This sentence : "[X]" means in one word:"'
SENTENCES = [
    "A man is playing a flute.",
    "Dogs.",
    "",
    'He said "stop." Then',
    "3.5 {{ x }} {% raw %} café 東京",
    " a\nb ",
]
LONG = "Two young women cook red beans in an old blue car on the beach. " * 20 + "Dogs run"


def make_sentencepiece(folder, style):
    """A random Llama with a SentencePiece-like vocabulary, as its first releases (legacy) or its later ones."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if style == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator([*TEXTS, EOL], trainers.BpeTrainer(vocab_size=500, special_tokens=specials))
    return make_with(tokenizer, folder, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, bos=1)


def make_merging(folder):
    """A random Llama whose tokenizer has one token for a full stop with a closing quotation mark, as GPT-2's has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator([*TEXTS, *['She plays."'] * 50], trainer)
    assert '."' in tokenizer.get_vocab()
    return make_with(tokenizer, folder, {"bos_token": "<s>", "eos_token": "</s>"}, bos=0)


def make_with(tokenizer, folder, names, bos):
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(fast), max_position_embeddings=256, **sizes)).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_chatting(folder):
    """A random Qwen3 whose tokenizer comes with a chat template of its own."""
    tokenizer = AutoTokenizer.from_pretrained(make_lm(folder, "qwen3"))
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% endfor %}"
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


def make_encoder(folder, prompt=EOL, **changes):
    values = {"path": str(folder), "license": "mit", "pooling": "lasttoken", "prompt": prompt, "max_seq_length": 128}
    spec = Encoder(**values | changes)
    return build_encoder(spec, find_base(spec)).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ids_are_those_of_the_whole_string_with_its_special_tokens(tmp_path, family):
    folder = FAMILIES[family](tmp_path / "base")
    untouched = AutoTokenizer.from_pretrained(folder)
    wanted = [untouched(EOL.replace("[X]", sentence)).input_ids for sentence in SENTENCES]
    encoder = make_encoder(folder)
    assert input_ids(encoder[0], SENTENCES) == wanted
    assert [input_ids(encoder[0], [sentence])[0] for sentence in SENTENCES] == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_sentence_loses_its_end_and_the_prompt_nothing_also_when_saved(tmp_path, family):
    encoder = make_encoder(FAMILIES[family](tmp_path / "base"), max_seq_length=48)
    (cut,) = input_ids(encoder[0], [LONG])
    whole = whole_ids(encoder.tokenizer, EOL, LONG)
    assert len(cut) == 48 < len(whole)
    kept = next(i for i, (left, right) in enumerate(zip(cut, whole, strict=False)) if left != right)
    tail = cut[kept:]
    assert tail == whole[len(whole) - len(tail) :]  # the sentence's first tokens, then the prompt's last ones
    text = encoder.tokenizer.decode(tail, skip_special_tokens=True)
    assert '" means in one word:"'.endswith(text) and len(text) >= len('" means in one word:"') - 1
    save_encoder(encoder, tmp_path / "saved")
    loaded, sentences = SentenceTransformer(str(tmp_path / "saved")), [*SENTENCES, LONG]
    assert loaded.max_seq_length == 48 and loaded.tokenizer.padding_side == "right"
    assert input_ids(loaded[0], sentences) == input_ids(encoder[0], sentences)
    assert np.abs(loaded.encode(sentences) - encoder.encode(sentences)).max() <= 1e-6


@pytest.mark.parametrize(
    "prompt", ['C:\\new {{ "x" }} [X] {% if %}', "Sum up: [X]", '[X]\nIn one word: "', "😀 '[X]' 東"]
)
def test_whatever_stands_in_a_prompt_is_text(tmp_path, prompt):
    encoder = make_encoder(make_lm(tmp_path / "base"), prompt)
    wanted = [whole_ids(encoder.tokenizer, prompt, sentence) for sentence in SENTENCES]
    assert input_ids(encoder[0], SENTENCES) == wanted


def test_without_a_prompt_a_bases_own_chat_template_is_not_used(tmp_path):
    folder = make_chatting(tmp_path / "base")
    wanted = AutoTokenizer.from_pretrained(folder)("Dogs.").input_ids
    encoder = make_encoder(folder, None)
    save_encoder(encoder, tmp_path / "saved")
    assert not (tmp_path / "saved" / "chat_template.jinja").exists()
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert input_ids(encoder[0], ["Dogs."]) == input_ids(loaded[0], ["Dogs."]) == [wanted]


def test_a_tokenizer_that_cannot_carry_the_prompt_is_an_input_error(tmp_path):
    folder = make_merging(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    space = tokenizer.convert_tokens_to_ids("Ġ")  # put behind every text; no text has it as its last token there
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A end", special_tokens=[("<s>", 0), ("end", space)]
    )
    tokenizer.save_pretrained(folder)
    with pytest.raises(InputError, match=r"prompt: its tokenizer gives other ids through a chat template"):
        make_encoder(folder)


def test_a_saved_tokenizer_that_gives_other_ids_is_found(tmp_path):
    encoder = make_encoder(make_lm(tmp_path / "base"))
    save_encoder(encoder, tmp_path / "saved")
    check_saved_ids(encoder[0], tmp_path / "saved")
    template = tmp_path / "saved" / "chat_template.jinja"
    template.write_text(template.read_text().replace("one word", "a word"))
    with pytest.raises(RunError, match=r"the saved tokenizer gives .* other ids than the trained encoder had"):
        check_saved_ids(encoder[0], tmp_path / "saved")
