"""A recipe's quantization: keyword arguments of transformers' config classes, as texts in YAML's notation."""

from collections.abc import Mapping
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator

from hub import safe_yaml


def quantization_values(texts: Mapping[str, str] | None) -> dict[str, Any]:
    """The arguments as transformers takes them: numbers, truth values and short lists for their texts (true, 4, nf4).

    Raises yaml.YAMLError for what cannot be read as one.
    """
    return {
        key: safe_yaml.load(text, max_bytes=10_000, max_depth=2, max_nodes=1_000) for key, text in (texts or {}).items()
    }


def _readable(texts: dict[str, str]) -> dict[str, str]:
    for key, text in texts.items():
        try:
            quantization_values({key: text})
        except yaml.MarkedYAMLError as error:
            raise ValueError(f"{key}: {error.problem}") from error
    return texts


Quantization = Annotated[dict[str, str], AfterValidator(_readable)]
