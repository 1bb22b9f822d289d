"""The sentence in a server's answer, or the reason of the answer's rejection.

An answer holds a sentence, and often more: an introduction, a list mark, reasoning. Words before a
colon count as an introduction only when a list here or the prompt has them: sentences have colons,
too. An answer may also hold no sentence: a refusal, an error, words about the task.
"""

import html
import json
import re
import unicodedata

from sts_dino.generation.backends.dialects import SENTENCE_KEY, replace_half_characters
from sts_dino.generation.backends.protocol import extract_text
from sts_dino.hub.contract.recipe import QUOTE
from sts_dino.hub.contract.schema import (
    ABOUT_THE_TASK,
    EMPTY,
    LINE_BREAK,
    NOT_A_SENTENCE,
    NOT_CLOSED,
    SEVERAL_SENTENCES,
    TOO_LONG_ANSWER,
)
from sts_dino.hub.text_files import MARK, is_blank

_LONGEST_TOKEN = 32  # characters; a server that sends more for each token ignored max_tokens
_LONGEST_TURN = 200_000  # characters, with the reasoning
# Unicode's categories: punctuation, separators, controls, and symbols except pictograms (So)
_WORDLESS = ("P", "Z", "C", "Sc", "Sk", "Sm")
# stands for an escaped quotation mark, which does not end a quotation; not a character of Unicode
_HIDDEN = "\uffff"
_ESCAPED = '\\"'
_STRAIGHT = str.maketrans(dict.fromkeys("“”„‟", QUOTE))
# opening mark → its closing marks; QUOTE, which the module handles by itself, is not among them
_PAIRS = {
    "»": "«»",
    "›": "‹›",
    "‘": "’",
    "’": "’",
    "‚": "‘’",
    "〝": "〞〟",
    "'": "'",
    "＂": "＂",
    "＇": "＇",
}
_PAIRS |= dict(zip("«‹「『｢《〈❝❛", "»›」』｣》〉❞❜", strict=True))
_APOSTROPHES = "'‘’‚＇"
# reasoning in a text, e.g. <think>...</think>
_THOUGHT = r"(?:think|thinking|thought|reasoning)[>\]▷]"
_THOUGHT_BEGINS = re.compile(rf"[<\[◁]{_THOUGHT}", re.IGNORECASE)
_THOUGHT_ENDS = re.compile(rf"[<\[◁]/{_THOUGHT}", re.IGNORECASE)
_MOST_LAYERS = 8  # passes that remove an introduction, each of which may reveal another one
_CONTROL = (
    r"</?s>|<[|｜][^|｜<>\n]{1,40}[|｜]>|</?(?:(?:start|end)_of_turn|[be]os|eot|pad|unk)>"
    r"|\[/?(?:INST|EOS)\]"
)
_CONTROL_TOKEN = re.compile(_CONTROL)
# what a prompt ends with before the opening mark, e.g. "Answer:"
_LABEL = re.compile(r'(\w[\w ]*):\s*"?$')
_LEAD_LINE = re.compile(r'^[^"\n]*:\s*\n\s*')  # "Here is a sentence:" on a line of its own
_QUOTATION = re.compile(r'(?:[^"\n]*:\s*)?"(.*)', re.DOTALL)
_YES = (
    r"(?:sure|certainly|of course|absolutely|okay|ok|great|natürlich|gerne|klar|bien sûr|claro"
    r"|certo|当然|好的)\W+"
)
_HERE = (
    r"(?:here(?:['’]s| is| are| you go| it is)|hier (?:ist|sind)|voici|aqu[ií] (?:está|tienes)"
    r"|ecco|以下是|这是)"
)
_SENTENCE = (
    r"(?:sentence|answer|paraphrase|satz|antwort|phrase|réponse|frase|oración|respuesta|句子|文)"
)
_END = r"(?=[ \t]*(?:\n|\Z))"  # of the line
_SPEAKERS = (
    r"(?:output|rephrased|rewritten|paraphrased?|result|response|translation|user|assistant"
    r"|human|ai|[st][12]|text[ _]?[12]?)"
)
# pattern of the beginning of a turn → what replaces it
_INTRODUCTIONS = {
    # control tokens
    rf"(?:(?:{_CONTROL})\s*)+": "",
    # a fenced block, and a fence that does not end
    r"(?:[^`\n]*:\s*)?(```|~~~)(?:[\w+-]*[ \t]*\n)?\s*((?:(?!\1).)*?)\s*\1": "\\2\n",
    r"(?:```|~~~)[\w+-]*[ \t]*\n\s*": "",
    # <answer>...</answer>
    rf"<(\w+)[^<>]*>\s*([^<]*?)\s*</\1>{_END}": "\\2\n",
    # "Sure! Here you go:", "Here is a sentence:", "Sentence 2:"
    rf"{_YES}{_HERE}[^\n:：\"]{{0,80}}(?:[:：]|\n)\s*": "",
    rf"{_HERE}(?:[^\n:：\"]{{0,80}}\b(?:one|{_SENTENCE})\b[^\n:：\"]{{0,80}}|)[:：]\s*": "",
    rf"{_SENTENCE}\s*(?:\d{{0,2}}\s*[:：]|\d{{1,2}}\s*[-–—.)])\s*": "",
    # an arrow, and the frame of an answer to a problem of mathematics
    r"(?:→|⇒|➜|➡|=>|->)\s*": "",
    rf"\$?\\boxed\{{(?:\\text\{{)?([^{{}}\n]*)\}}{{1,2}}\$?{_END}": r"\1",
    # emphasis of the whole line, and of an introduction or a number
    rf"(\*{{1,3}}|_{{1,3}}|`{{1,2}}|~~)(?=\S)((?:(?!\1)[^\n])+)\1{_END}": r"\2",
    r"(\*\*|__)([^\n*]{1,60}[:：]|\d{1,2}[.)]|[^\n*]{1,60}(?=\1\s*[:：]))\1": r"\2",
}
_LAYERS = [
    (re.compile(rf"\A{pattern}", re.IGNORECASE), remainder)
    for pattern, remainder in _INTRODUCTIONS.items()
]
# an introduction that may begin a sentence, too: the prompt decides
_SPEAKER = re.compile(rf"\A{_SPEAKERS}\s*[:：]\s*(\S+)", re.IGNORECASE)
_LIST_ITEM = re.compile(r"\A(?:#{1,6}\s|>\s|[-*+•‣◦·▪]\s|\(?\d{1,2}[.)]\s|\d{1,2}[、．])\s*(\S+)")
_NUMBERED_LINE = re.compile(r"\A\(?1[.)]\s.*\S\s+\(?2[.)]\s", re.DOTALL)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]\w{1,30});")  # of HTML
_WRITTEN_LINE_BREAK = re.compile(r"\\n(?![a-z])")  # the two characters, not C:\new
_APOLOGY = r"(?:(?:i['’]m|i am) (?:very |so )?sorry|sorry|i apologi[sz]e|unfortunately)"
_UNABLE = r"(?: can(?:not|['’]t)|(?: am|['’]m) (?:unable|not able) to| won['’]t)"
_WORK = (
    r"(?:assist|help|comply|fulfil\w*|provide|generate|create|write|rewrite|rephrase|paraphrase"
    r"|answer|continue|process|respond|complete)\b"
)
_THIS_TASK = r"(?:the|this|your) (?:\w+ )?(?:sentence|request|prompt|task|instructions?|question)"
# What a model or a gateway says in place of a sentence. A pattern stands at the beginning.
_REFUSALS = (
    r".{0,60}\bas an? (?:ai|artificial intelligence|(?:large )?language model)\b",
    r".{0,40}\bi(?: am|['’]m) (?:just |only )?an? (?:ai\b|(?:large )?language model)",
    rf"(?:{_APOLOGY}\W*(?:but )?)?i{_UNABLE} {_WORK}",
    r"(?:es tut mir leid|leider)\W+(?:aber )?(?:ich )?kann(?: ich)? .*(?:helfen|erstellen|nicht)",
    r"als (?:ki|künstliche intelligenz|sprachmodell)\b",
    r"en tant qu(?:['’]ia|['’]intelligence artificielle|e modèle de langage)\b",
    r"je suis désolée?\W+(?:mais )?je ne (?:peux|suis) pas\b",
    r"como (?:una? )?(?:ia|inteligencia artificial|modelo de lenguaje)\b",
    r"lo siento\W+(?:pero )?no puedo (?:ayudar|generar|proporcionar|cumplir)",
    r"作为(?:一个)?(?:ai|人工智能|语言模型)",
    r"(?:抱歉|对不起)\W*我?(?:无法|不能)",
)
_ERRORS = (
    r"(?:\w+ ?error|error(?: \d+)?)\s*[:(\[]",
    r"(?:rate limit|quota) (?:was |is |has been )?(?:exceeded|reached)\b",
    r"(?:\d{3} )?(?:internal server error|too many requests|service unavailable|bad gateway)\b",
)
_REASONING = (
    r"(?:(?:okay|ok|alright|so|hmm+|well)\W+)?(?:so )?the user "
    r"(?:wants|asks|asked|is asking|needs|said)",
    r"(?:thinking|thought|reasoning)(?: process)?\s*[:：]",
    rf"(?:we|i) (?:need|have|must|should|will)(?: to)? (?:now )?{_WORK} "
    r"(?:a|an|one|two|another|the)\b.*\b(?:sentence|paraphrase|text)s?\b",
    rf"let(?: me|['’]s| us) (?:\w+ )?(?:think|analy[sz]e|look at|consider|start with|begin with)"
    rf".{{0,20}}{_THIS_TASK}",
)
_NO_TEXT = (
    r"(?:no|empty) (?:response|answer|output|content|text|reply)\W*\Z",
    r"(?:null|none|nil|n/a|undefined|nan)\W*\Z",
)
_ABOUT_THE_TASK = [
    re.compile(rf"\A\W*{pattern}", re.IGNORECASE)
    for pattern in (*_REFUSALS, *_ERRORS, *_REASONING, *_NO_TEXT)
]
_NOTE = re.compile(r"(?<!\s)\s*\((?:note|explanation)\b[^()]*\)\Z", re.IGNORECASE)


def decode_escapes(answer: str, prompt: str) -> str:
    """Return an answer with its HTML entities and written-out line breaks decoded.

    ``&quot;`` becomes a quotation mark, and a backslash with an n becomes a line break. An entity
    that the prompt has, too, stays unchanged; so do all written-out line breaks if the prompt has
    one.
    """

    def decode(entity: re.Match[str]) -> str:
        """Return the character of an entity; a no-break space is a space."""
        return entity[0] if entity[0] in prompt else html.unescape(entity[0]).replace("\xa0", " ")

    answer = _ENTITY.sub(decode, answer)
    if "\\n" in prompt:
        return answer
    return _WRITTEN_LINE_BREAK.sub("\n", answer)


def extract_structured_text(answer: str, key: str = SENTENCE_KEY) -> tuple[str, str | None]:
    """Return the sentence under a key of a JSON answer, and its problem or None.

    Quotation marks around the whole sentence are removed. An answer that was cut, or that is not a
    JSON object with a string under ``key``, is returned as it is, with the problem ``NOT_CLOSED``.
    A sentence has the problem ``LINE_BREAK`` for a line break, else ``NOT_CLOSED`` for a quotation
    mark that is not closed. An empty sentence has no problem here.
    """
    # Read the JSON
    try:
        payload = json.loads(answer)
    except (ValueError, RecursionError):
        return answer, NOT_CLOSED
    sentence = payload.get(key) if isinstance(payload, dict) else None
    if not isinstance(sentence, str):
        return answer, NOT_CLOSED

    # Remove quotation marks around it, if there are none within it
    text = replace_half_characters(sentence).strip()
    straight = text.translate(_STRAIGHT)
    is_quoted = len(straight) > 1 and straight[0] == straight[-1] == QUOTE
    if is_quoted and straight.count(QUOTE) == 2:
        text = text[1:-1].strip()
    text, problem = _drop_quotation_marks(text)
    return text, LINE_BREAK if "\n" in text else problem


def extract_turn_text(prompt: str, answer: str, stopped: bool) -> tuple[str, str | None]:
    """Return the text in a chat model's own turn, and its problem as ``extract_text`` does.

    Such a turn does not continue the prompt's quotation. Introductions are removed first; the last
    words of the prompt (``Answer:``) count as one. The text is the quotation that follows, the line
    up to a quotation mark at its end, or a first line without quotation marks that the model ended.

    Args:
        prompt: the request's prompt.
        answer: the text of the turn; characters after the first ``_LONGEST_TURN`` are ignored.
        stopped: the model ended its turn.

    Returns:
        The text, and None or EMPTY, LINE_BREAK, NOT_CLOSED or NOT_A_SENTENCE (reasoning without an
        end) of ``sts_dino.hub.contract.schema``.
    """
    # Remove byte-order marks and the reasoning, and make all quotation marks straight. A turn that
    # begins with an escaped mark has all marks escaped. Elsewhere an escaped mark is inside the
    # sentence: it is hidden until the end, so that it does not end the quotation.
    turn = _THOUGHT_ENDS.split(answer[:_LONGEST_TURN].replace(MARK, ""))[-1].strip()
    if turn.startswith(_ESCAPED):
        turn = turn.replace(_ESCAPED, QUOTE)
    turn = turn.replace(_ESCAPED, _HIDDEN).translate(_STRAIGHT)
    if _THOUGHT_BEGINS.search(turn):
        return turn, NOT_A_SENTENCE

    # Find the sentence after its introduction
    turn = _drop_introduction(turn, prompt)
    turn = _drop_introduction(_LEAD_LINE.sub("", turn), prompt)
    quotation = _QUOTATION.match(turn)
    if quotation:
        text, problem = extract_text(quotation[1], False, "quotation_mark")
    else:
        text, problem = _extract_first_line(turn, stopped)

    # Remove notes, end tokens and quotation marks around it
    if problem is None:
        text, problem = _drop_quotation_marks(_NOTE.sub("", _drop_end_tokens(text)))
    return text.replace(_HIDDEN, QUOTE), problem


def _extract_first_line(turn: str, stopped: bool) -> tuple[str, str | None]:
    """Return the first line of a turn that opens no quotation, and its problem or None.

    A quotation mark at its end closes it, as if the mark had been opened before the turn. A line
    with a mark elsewhere, or cut at the limit of the answer's length, is ``NOT_CLOSED``; a turn
    without text is ``EMPTY``. ``stopped``: the model ended its turn.
    """
    line, line_break, _ = turn.partition("\n")
    line = line.rstrip()
    if not line:
        return line, EMPTY
    quote = line.find(QUOTE)
    if quote == len(line) - 1:
        return extract_text(line, False, "quotation_mark")
    ended = quote < 0 and (line_break or stopped)
    return line, None if ended else NOT_CLOSED


def bound_text(
    text: str, problem: str | None, prompt: str, max_new_tokens: int
) -> tuple[str, str | None]:
    """Return a text without byte-order marks, cut to a length, and its problem or None.

    Only a text without an earlier problem is searched for further ones, and loses the control
    tokens at its end.

    Args:
        text: the text in a server's answer.
        problem: the problem that was found before, if any; it stays.
        prompt: the request's prompt. Words that it has itself are not a problem of the text.
        max_new_tokens: the recipe's limit; the text has at most ``_LONGEST_TOKEN`` characters for
            each token.
    """
    longest = _LONGEST_TOKEN * max_new_tokens
    text = text.replace(MARK, "").strip()
    if problem is None:
        text = _drop_end_tokens(text)
        problem = _find_problem(text, longest) or _find_words_about_task(text[:longest], prompt)
    return text[:longest], problem


def _find_words_about_task(text: str, prompt: str) -> str | None:
    """Return ``ABOUT_THE_TASK``, ``SEVERAL_SENTENCES`` (a numbered list) or None for a text.

    Words that the prompt has, too, do not count.
    """
    for pattern in _ABOUT_THE_TASK:
        match = pattern.search(text)
        if match and match[0] not in prompt:
            return ABOUT_THE_TASK
    if _NUMBERED_LINE.search(text) and not _NUMBERED_LINE.search(prompt):
        return SEVERAL_SENTENCES
    return None


def _find_problem(text: str, longest: int) -> str | None:
    """Return the problem that a text's characters show, or None.

    It is ``EMPTY`` for a blank text, ``TOO_LONG_ANSWER`` above ``longest``, ``NOT_CLOSED`` for a
    backslash at the end, or ``NOT_A_SENTENCE``. A text is not a sentence if it holds a control
    token or a mark of reasoning, or if it has neither a letter, a digit nor a pictogram.

    Args:
        text: the text.
        longest: the largest number of characters.
    """
    if is_blank(text):
        return EMPTY
    if len(text) > longest:
        return TOO_LONG_ANSWER
    # The text was cut at an escaped quotation mark, which does not end the sentence
    if text.endswith("\\"):
        return NOT_CLOSED
    for pattern in (_CONTROL_TOKEN, _THOUGHT_BEGINS, _THOUGHT_ENDS):
        if pattern.search(text):
            return NOT_A_SENTENCE
    if all(unicodedata.category(character).startswith(_WORDLESS) for character in text):
        return NOT_A_SENTENCE
    return None


def _drop_end_tokens(text: str) -> str:
    """Return a text without the control tokens at its end and the blanks around it.

    A text with control tokens before or between its words is unchanged.
    """
    first, *further = _CONTROL_TOKEN.split(text)
    return text if "".join(further).strip() else first.strip()


def _drop_introduction(turn: str, prompt: str) -> str:
    """Return the turn without the introductions before its sentence.

    A list mark, or the name of a speaker, stays if the prompt has it before the same word: it may
    be part of the sentence.
    """
    layers = _LAYERS
    label = _LABEL.search(prompt)
    if label:
        name = re.escape(label[1].strip())
        layers = [*_LAYERS, (re.compile(rf"\A{name}\s*[:：]\s*", re.IGNORECASE), "")]

    for _ in range(_MOST_LAYERS):
        previous = turn
        for layer, remainder in layers:
            turn = layer.sub(remainder, turn, count=1).lstrip()
        if _NUMBERED_LINE.search(turn.partition("\n")[0]):
            break  # "1. … 2. …": ``bound_text`` refuses several sentences by these marks
        for pattern in (_LIST_ITEM, _SPEAKER):
            match = pattern.match(turn)
            if match and match[0] not in prompt:
                turn = turn[match.start(1) :]
        if turn == previous:
            break
    return turn


def _drop_quotation_marks(line: str) -> tuple[str, str | None]:
    """Return a line without the pair of quotation marks around all of it, and its problem or None.

    Punctuation after the closing mark is removed with the pair. The problem is ``NOT_CLOSED`` if
    the closing mark is missing, unless the opening mark may be an apostrophe. A closing mark
    without an opening one is removed, too, unless it may be an apostrophe.
    """
    if line[:1] not in _PAIRS:
        for opener, closers in _PAIRS.items():
            if opener not in _APOSTROPHES and line.endswith(tuple(closers)) and opener not in line:
                return line.rstrip(line[-1]), None
        return line, None
    end = _find_closing_mark(line)
    if end is None:
        problem = None if line[0] in _APOSTROPHES else NOT_CLOSED
        return line, problem
    if line[end + 1 :].strip(".。!！?？؟।,"):
        return line, None  # the marks are around a part of the line
    return line[1:end].strip(), None


def _find_closing_mark(line: str) -> int | None:
    """Return the index of the mark that closes the line's first character, a key of ``_PAIRS``.

    Returns None if the line has no such mark. Nested pairs of marks are skipped, and so are
    apostrophes within words.
    """
    depth = 0
    for index, sign in enumerate(line):
        is_letter_before = line[index - 1 : index].isalnum()
        if sign in _APOSTROPHES and is_letter_before and line[index + 1 : index + 2].isalnum():
            continue  # within a word
        if index and sign in _PAIRS[line[0]]:
            depth -= 1
        elif sign == line[0]:
            depth += 1
        if depth == 0:
            return index
    return None
