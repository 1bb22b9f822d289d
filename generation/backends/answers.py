"""The sentence in a server's answer, without what chat models put around it, or the reason of its rejection. Pure.

Words before a colon count as an introduction only when a list here or the prompt has them: sentences have colons, too.
"""

import re
import unicodedata

from generation.backends.protocol import cut
from hub.contract.recipe import QUOTE
from hub.contract.schema import EMPTY, NOT_A_SENTENCE, NOT_CLOSED, TOO_LONG_ANSWER
from hub.text_files import MARK, is_blank

_LONGEST_TOKEN = 32  # characters; a server that sends more for each token ignored max_tokens
_LONGEST_ANSWER = 200_000  # characters, with the reasoning
_ESCAPED, _HIDDEN = '\\"', "\uffff"  # no character of Unicode: stands for an escaped mark, which ends no quotation
_STRAIGHT = str.maketrans(dict.fromkeys("“”„‟", QUOTE))
_PAIRS = {"»": "«»", "›": "‹›", "‘": "’", "’": "’", "‚": "‘’", "〝": "〞〟", "'": "'", "＂": "＂", "＇": "＇"}
_PAIRS |= dict(zip("«‹「『｢《〈❝❛", "»›」』｣》〉❞❜", strict=True))
_APOSTROPHES = "'‘’‚＇"
_THOUGHT = r"(?:think|thinking|thought|reasoning)[>\]▷]"
_THOUGHT_BEGINS, _THOUGHT_ENDS = (re.compile(rf"[<\[◁]{slash}{_THOUGHT}", re.IGNORECASE) for slash in ("", "/"))
_CONTROL = r"</?s>|<[|｜][^|｜<>\n]{1,40}[|｜]>|</?(?:(?:start|end)_of_turn|[be]os|eot|pad|unk)>|\[/?(?:INST|EOS)\]"
_CONTROLS = re.compile(_CONTROL)
_LABEL = re.compile(r'(\w[\w ]*):\s*"?$')  # what a prompt ends with before the opening mark, e.g. "Answer:"
_LEAD_LINE = re.compile(r'^[^"\n]*:\s*\n\s*')  # "Here is a sentence:" on a line of its own
_OPENED = re.compile(r'(?:[^"\n]*:\s*)?"(.*)', re.DOTALL)
_YES = r"(?:sure|certainly|of course|absolutely|okay|ok|great|natürlich|gerne|klar|bien sûr|claro|certo|当然|好的)\W+"
_HERE = r"(?:here(?:['’]s| is| are| you go| it is)|hier (?:ist|sind)|voici|aqu[ií] (?:está|tienes)|ecco|以下是|这是)"
_SENTENCE = r"(?:sentence|answer|paraphrase|satz|antwort|phrase|réponse|frase|oración|respuesta|句子|文)"
_END = r"(?=[ \t]*(?:\n|\Z))"  # of the line
_LAYERS = [
    (re.compile(rf"\A{layer}", re.IGNORECASE), inner)
    for layer, inner in {
        rf"(?:(?:{_CONTROL})\s*)+": "",
        r"(?:[^`\n]*:\s*)?(```|~~~)(?:[\w+-]*[ \t]*\n)?\s*((?:(?!\1).)*?)\s*\1": "\\2\n",
        r"(?:```|~~~)[\w+-]*[ \t]*\n\s*": "",
        rf"<(\w+)[^<>]*>\s*([^<]*?)\s*</\1>{_END}": "\\2\n",
        rf"{_YES}{_HERE}[^\n:：\"]{{0,80}}(?:[:：]|\n)\s*": "",
        rf"{_HERE}(?:[^\n:：\"]{{0,80}}\b(?:one|{_SENTENCE})\b[^\n:：\"]{{0,80}}|)[:：]\s*": "",
        rf"{_SENTENCE}\s*\d{{0,2}}\s*[:：]\s*": "",
        rf"(\*{{1,3}}|_{{1,3}}|`{{1,2}}|~~)(?=\S)((?:(?!\1)[^\n])+)\1{_END}": r"\2",
        r"(\*\*|__)([^\n*]{1,60}[:：]|\d{1,2}[.)]|[^\n*]{1,60}(?=\1\s*[:：]))\1": r"\2",
    }.items()
]  # fmt: skip
_LIST = re.compile(r"\A(?:#{1,6}\s|>\s|[-*+•‣◦·▪]\s|\(?\d{1,2}[.)]\s|\d{1,2}[、．])\s*(\S+)")
_NOTE = re.compile(r"(?<!\s)\s*\((?:note|explanation)\b[^()]*\)\Z", re.IGNORECASE)


def turn_text(prompt: str, answer: str, stopped: bool) -> tuple[str, str | None]:
    """The text in a chat model's own turn, which does not continue the prompt's quotation; its problem as of ``cut``.

    ``stopped``: the model ended its turn. The prompt's own last words (``Answer:``) are an introduction. The text is
    the quotation that follows, the line up to a mark at its end, or a first line without marks that the model ended.
    """
    words = _THOUGHT_ENDS.split(answer[:_LONGEST_ANSWER].replace(MARK, ""))[-1].strip()
    if words.startswith(_ESCAPED):
        words = words.replace(_ESCAPED, QUOTE)
    words = words.replace(_ESCAPED, _HIDDEN).translate(_STRAIGHT)
    if _THOUGHT_BEGINS.search(words):
        return words, NOT_A_SENTENCE
    words = _bare(_LEAD_LINE.sub("", _bare(words, prompt)), prompt)
    if opened := _OPENED.match(words):
        text, problem = cut(opened[1], False, "quotation_mark")
    else:
        line, more, _ = words.partition("\n")
        line = line.rstrip()
        if line.find(QUOTE) == len(line) - 1 >= 0:
            text, problem = cut(line, False, "quotation_mark")
        else:
            ended = QUOTE not in line and (more or stopped)
            text, problem = line, EMPTY if not line else None if ended else NOT_CLOSED
    if problem is None:
        text, problem = _unquoted(_NOTE.sub("", _without_tokens(text)))
    return text.replace(_HIDDEN, QUOTE), problem


def bounded(text: str, problem: str | None, max_new_tokens: int) -> tuple[str, str | None]:
    """A text of any server without end tokens and invisible marks, at most as long as its tokens allow; its problem."""
    longest = _LONGEST_TOKEN * max_new_tokens
    text = text.replace(MARK, "").strip()
    if problem is None:
        text = _without_tokens(text)
        if is_blank(text):
            problem = EMPTY
        elif len(text) > longest:
            problem = TOO_LONG_ANSWER
        elif text.endswith("\\"):
            problem = NOT_CLOSED
        elif any(sign.search(text) for sign in (_CONTROLS, _THOUGHT_BEGINS, _THOUGHT_ENDS)) or all(
            unicodedata.category(sign)[0] in "PZC" for sign in text
        ):
            problem = NOT_A_SENTENCE
    return text[:longest], problem


def _without_tokens(text: str) -> str:
    """The text without the tokens at its end."""
    first, *rest = _CONTROLS.split(text)
    return text if "".join(rest).strip() else first.strip()


def _bare(words: str, prompt: str) -> str:
    """The answer without the layers before its sentence. A list mark stays where the prompt has it before that word."""
    label = _LABEL.search(prompt)
    own = re.compile(rf"\A{re.escape(label[1].strip())}\s*[:：]\s*", re.IGNORECASE) if label else None
    for _ in range(8):
        before = words
        for layer, inner in (*_LAYERS, *([(own, "")] if own else [])):
            words = layer.sub(inner, words, count=1).lstrip()
        if (item := _LIST.match(words)) and item[0] not in prompt:
            words = words[item.start(1) :]
        if words == before:
            break
    return words


def _unquoted(line: str) -> tuple[str, str | None]:
    """A line without the pair of quotation marks around the whole of it; ``not_closed`` where the pair lacks one."""
    closers, depth = _PAIRS.get(line[:1], ""), 0
    for place, sign in enumerate(line if closers else ""):
        inside = sign in _APOSTROPHES and line[place - 1 : place].isalnum() and line[place + 1 : place + 2].isalnum()
        if sign in closers and place and not inside:
            depth -= 1
        elif sign == line[0] and not inside:
            depth += 1
        if depth == 0:
            whole = not line[place + 1 :].strip(".。!！?？,")
            return line[1:place].strip() if whole else line, None
    if closers:
        return line, None if line[0] in _APOSTROPHES else NOT_CLOSED
    stray = any(line[-1:] in ends and start not in line for start, ends in _PAIRS.items() if start not in _APOSTROPHES)
    return line.rstrip(line[-1]) if line and stray else line, None
