"""A real cross-encoder on disk that reads one word: ``surely`` entails, ``maybe`` is neutral,
``never`` contradicts.

A one-layer BERT whose weights are set by hand. Each marker is a direction of the embedding;
attention is uniform, so the first token's state holds the mean of the tokens' directions; the
pooler and the classifier read them off.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

MARKERS = {"surely": "entailment", "maybe": "neutral", "never": "contradiction"}
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
HIDDEN = 8


def make_marker_nli(
    directory: Path, classes: tuple[str, ...] = ("contradiction", "entailment", "neutral")
) -> Path:
    """Write the model, its outputs in the order of ``classes``; names that are no class go into the
    config as given.
    """
    vocabulary = {word: number for number, word in enumerate((*SPECIALS, *MARKERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, special)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(directory)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=HIDDEN,
        max_position_embeddings=64,
        id2label=dict(enumerate(classes)),
        label2id={name: number for number, name in enumerate(classes)},
    )
    model = BertForSequenceClassification(config)
    _set(model, vocabulary, [name.lower() for name in classes])
    model.save_pretrained(directory)
    return directory


def _set(
    model: BertForSequenceClassification, vocabulary: dict[str, int], classes: list[str]
) -> None:
    """Marker k is direction k; what is not a marker is nothing."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        bert, layer = model.bert, model.bert.encoder.layer[0]
        for direction, word in enumerate(MARKERS):
            bert.embeddings.word_embeddings.weight[vocabulary[word], direction] = 1.0
        for matrix in (layer.attention.self.value, layer.attention.output.dense, bert.pooler.dense):
            matrix.weight.copy_(torch.eye(HIDDEN))
        known = set(MARKERS.values()) <= set(classes)
        for direction, meaning in enumerate(MARKERS.values()):
            model.classifier.weight[classes.index(meaning) if known else direction, direction] = 4.0
