"""A random language model of a few thousand parameters that ends its texts soon."""

from pathlib import Path
from typing import Any

CLOSING = 4.5  # added to the quotation mark's logit: about one token in four


def make_model(directory: Path, context: int = 128) -> Path:
    """Write a random one-layer GPT-2 of 32 dimensions over bytes that ends its texts after a few tokens."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    letters = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": context}
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(letters), tie_word_embeddings=False, **sizes, **ends))
    with torch.no_grad():  # the last normalisation adds a direction that few tokens' output weights share
        direction = torch.nn.functional.normalize(torch.randn(32), dim=0)
        model.transformer.ln_f.bias.copy_(10 * direction)
        for token, logit in (('"', CLOSING), ("Ċ", -CLOSING), ("<|end|>", -CLOSING)):
            model.lm_head.weight[wrapped.convert_tokens_to_ids(token)] = logit / 10 * direction
    model.save_pretrained(directory)
    wrapped.save_pretrained(directory)
    return directory
