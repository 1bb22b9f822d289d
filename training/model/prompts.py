"""Two-sided prompts, e.g. PromptEOL's ``This sentence : "[X]" means in one word:"``, in stock modules.

The prompt becomes the tokenizer's chat template, so the model receives the tokens of the whole prompt as one string,
as in PromptEOL (Jiang et al. 2023, section 3). The other stock way, a template in the tokenizer's post-processor,
tokenises the sentence alone: a tokenizer that merges across the quotation mark (``."`` is one token of GPT-2 and of
many others) then gives other ids than the paper's. A sentence that is too long loses its end and never the prompt's:
sentence-transformers puts the tokens after the sentence back in the last places.
"""

import copy
from pathlib import Path
from typing import Any

from sentence_transformers.sentence_transformer.modules import Transformer
from transformers import AutoTokenizer

from hub.contract.sections.model import PROMPT_TEXT
from hub.errors import InputError, RunError
from hub.model_folder import NO_CODE

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
        found, limit = f"the prompt alone has {length} tokens", f"fewer than max_seq_length, which is {most}"
        raise InputError(
            f"{place}.prompt", found, allowed=limit, hint="shorten the prompt or raise base.max_seq_length"
        )
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
    mask = encoded["special_tokens_mask"]
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    first = mask.index(0)
    last = len(mask) - mask[::-1].index(0)
    before, after = prompt.split(PROMPT_TEXT)
    opening, closing = "".join(tokens[:first]), "".join(tokens[last:])
    content, end = '{{ messages[-1]["content"] }}', _literal(after + closing)
    return [_literal(opening + space + before) + content + end for space in ("", " ")]


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
