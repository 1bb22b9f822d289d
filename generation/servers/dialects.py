"""The fields of a request: what every OpenAI-compatible server takes, and what some need besides. Pure.

The OpenAI API knows no top-k, and its answer says "stop" both when a stop word was met and when the model ended the
text itself, without the stop word. Four dialects (``model.server.dialect``):

openai        the closing quotation mark is no stop word (it could not be told from an end), the line break is; top_k is
              sent when the recipe asks for one, so that a server which does not know it refuses it
vllm          the stop word stays in the text; everything that a model's generation_config.json could change is sent;
              a chat model's turn is begun with the quotation mark
transformers  ``transformers serve`` samples only when the field generation_config says so; the stop word stays
llamacpp      llama.cpp's server is told all its samplers and names the stop word (generation.servers.llamacpp); of that
              word it gives no log-probability, so the closing mark is none where those are asked for; a chat model's
              turn is begun as with vllm
"""

import json
from typing import Any

from generation.decoding.protocol import Request
from generation.servers import llamacpp
from hub.contract.recipe import QUOTE, DecodingParameters, LanguageModel, Server

Body = dict[str, Any]
COMPLETIONS, CHAT = "/completions", "/chat/completions"


def endpoint(model: LanguageModel) -> str:
    """The path below ``base_url`` that prompts are sent to."""
    return CHAT if model.chat_template else COMPLETIONS


def opens_quotation(model: LanguageModel, server: Server) -> bool:
    """Whether an answer continues an open quotation: always, but for chat models whose turn cannot be begun."""
    return not model.chat_template or server.dialect in ("vllm", "llamacpp")


def request_body(model: LanguageModel, server: Server, request: Request, settings: DecodingParameters) -> Body:
    """All JSON fields of one request. The row's seed keeps 31 bits: llama.cpp takes no more."""
    shared = {"model": server.model, "max_tokens": settings.max_new_tokens, "seed": request.seed >> 33}
    untold = server.dialect == "openai" or (server.dialect == "llamacpp" and server.logprobs)
    quoted = not untold and settings.text_end == "quotation_mark"
    stops = {"stop": [*((QUOTE,) if quoted else ()), "\n"]}
    logprobs = {"logprobs": model.chat_template or 1} if server.logprobs else {}
    return {
        **shared,
        **_prompt(model, server, request.prompt),
        **(stops if opens_quotation(model, server) else {}),
        **logprobs,
        **_sampling(server, settings),
    }


def _prompt(model: LanguageModel, server: Server, prompt: str) -> Body:
    if not model.chat_template:
        return {"prompt": prompt}
    turns = [{"role": "user", "content": prompt.removesuffix(QUOTE)}]  # which the answer opens
    if not opens_quotation(model, server):
        return {"messages": turns}
    begun = {"role": "assistant", "content": QUOTE}
    return {"messages": [*turns, begun], "add_generation_prompt": False, "continue_final_message": True}


def _sampling(server: Server, settings: DecodingParameters) -> Body:
    if server.dialect == "llamacpp":
        return llamacpp.sampling(settings)
    plain = {"temperature": 1.0, "top_p": settings.top_p}
    if server.dialect == "transformers":
        config = {**plain, "do_sample": True, "top_k": settings.top_k, "repetition_penalty": 1.0}
        return {"generation_config": json.dumps(config)}
    if server.dialect == "vllm":
        fixed = {"min_p": 0.0, "repetition_penalty": 1.0, "include_stop_str_in_output": True}
        return {**plain, "top_k": settings.top_k or -1, **fixed}
    return {**plain, "top_k": settings.top_k} if settings.top_k else plain
