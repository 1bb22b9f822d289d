"""Which two sentences make a training pair of which label. Pure functions over a corpus; no score, no encoder.

Relations are judged by words alone: F1 over the content words of two sentences, weighted by their rarity.
"""

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from experiments.built_in_lm import rules, templates
from experiments.built_in_lm.corpus import Corpus, normalise
from experiments.built_in_lm.prompts import Pair, clean
from experiments.built_in_lm.rules import capitalise, listed

_TOKEN = re.compile(r"[a-z0-9]+")
_STOP = frozenset(
    listed("""
    a an the and or of in on at to for with by from as is are was were be been being has have had do does did it
    its he she they his her their this that these those there who which while into over up down out off i my you
    your not but can will would what how than then so some
""")
)


def content(text: str) -> frozenset[str]:
    """The lower-case content words of a sentence, without plural endings."""
    found = (w for w in _TOKEN.findall(text.lower()) if w not in _STOP)
    return frozenset(w[:-1] if len(w) > 3 and w.endswith("s") else w for w in found)


class Neighbours:
    """Sentences of one pool with an index from content words, to find partly similar ones quickly."""

    def __init__(self, sentences: list[str]):
        self.sentences = sentences
        self.words = [content(t) for t in sentences]
        frequency = Counter(w for ws in self.words for w in ws)
        self.weight = {w: math.log(1 + len(sentences) / n) for w, n in frequency.items()}
        self._index: dict[str, list[int]] = defaultdict(list)
        for number, ws in enumerate(self.words):
            for w in ws:
                self._index[w].append(number)

    def overlap(self, first: frozenset[str], second: frozenset[str]) -> float:
        """F1 of two sets of words, weighted by rarity."""
        total = sum(self.weight.get(w, 10.0) for w in first) + sum(self.weight.get(w, 10.0) for w in second)
        return 2 * sum(self.weight.get(w, 10.0) for w in first & second) / total if total else 0.0

    def similarity(self, first: str, second: str) -> float:
        """The same for two sentences."""
        return self.overlap(content(first), content(second))

    def middle(self, text: str, rng: random.Random) -> str | None:
        """A sentence that shares about a third to a half of its content with ``text``."""
        own = content(text)
        known = sorted(w for w in own if len(self._index.get(w, ())) > 5)
        for _ in range(3):
            if not known:
                return None
            posting = self._index[rng.choice(known)]
            for number in rng.sample(posting, min(12, len(posting))):
                if 0.25 <= self.overlap(own, self.words[number]) <= 0.55:
                    return self.sentences[number]
        return None

    def far(self, text: str, rng: random.Random) -> str:
        """A sentence without a content word of ``text``."""
        own = content(text)
        for _ in range(60):
            number = rng.randrange(len(self.sentences))
            if not own & self.words[number]:
                return self.sentences[number]
        return self.sentences[rng.randrange(len(self.sentences))]


Maker = Callable[[random.Random], "Pair | None"]


def _rewritten(label: str, pool: Neighbours, rewrite: Callable[[str, random.Random], str | None], kind: str) -> Maker:
    """A sentence of the pool and what is made of it, or found for it."""

    def make(rng: random.Random) -> Pair | None:
        first = rng.choice(pool.sentences)
        second = rewrite(first, rng)
        return Pair(label, first, second, kind) if second else None

    return make


def _grafted(pool: Neighbours, kind: str, keep_head: float = 0.85, finish: Callable[[str], str] = str) -> Maker:
    """A sentence of the pool and half of it with half of another."""

    def make(rng: random.Random) -> Pair | None:
        first, other = rng.choice(pool.sentences), rng.choice(pool.sentences)
        second = rules.graft(first, other, rng, keep_head)
        return Pair("0.5", first, finish(second), kind) if second else None

    return make


def _templates(label: str, another: Callable[[templates.Filled, random.Random], templates.Filled], kind: str) -> Maker:
    """A filled template and another one made from it."""

    def make(rng: random.Random) -> Pair:
        first = templates.draw(rng)
        return Pair(label, first.text, another(first, rng).text, kind)

    return make


class PairMaker:
    """Draws pairs of every label and kind from a corpus, in fixed proportions, from one random generator."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self.captions = captions = Neighbours([t for image in corpus.images for t in image])
        self.prose = prose = Neighbours(corpus.prose)
        self.snli = {k: [r for r in corpus.nli if r[0] == k] for k in ("entailment", "neutral", "contradiction")}
        self.rejected: Counter[str] = Counter()
        # Shares of all pairs in the first and in the later rounds, how to make one. The first have the full range of
        # label 0.5; later most of its pairs keep the beginning of the first sentence. Self-debiasing damps what label 1
        # would say as well; a beginning that label 0.5 copies more surely than label 1 survives it, and the rest
        # moves away.
        self.kinds: list[tuple[float, float, Maker]] = [
            (6.0, 6.0, self._same_image_close),
            (15.0, 15.0, _rewritten("1", captions, rules.paraphrase, "caption, paraphrased by rules")),
            (1.5, 1.5, self._between("1", self._entailed, 0.55, 2.0, "SNLI entailment, close")),
            (10.0, 10.0, _rewritten("1", prose, rules.paraphrase, "prose, paraphrased by rules")),
            (4.5, 4.5, _templates("1", templates.reworded, "templates, same")),
            (0.0, 13.0, _grafted(captions, "caption, beginning kept", 1.0, rules.agree)),
            (0.0, 8.5, _grafted(prose, "prose, beginning kept", 1.0)),
            (0.0, 4.5, _templates("0.5", partial(templates.related, other_set=0.15), "templates, one filler changed")),
            (6.0, 2.0, self._between("0.5", self._image, 0.12, 0.45, "captions of one image, loose")),
            (4.0, 1.0, _rewritten("0.5", captions, captions.middle, "captions of two images, some words shared")),
            (1.5, 1.5, _rewritten("0.5", captions, rules.swap_tail, "caption, words swapped by rules")),
            (6.0, 0.0, _grafted(captions, "caption, half of another")),
            (2.5, 0.5, self._between("0.5", self._not_entailed, 0.15, 0.6, "SNLI neutral or contradiction")),
            (2.0, 0.5, self._prose_neighbour),
            (6.0, 0.0, _grafted(prose, "prose, half of another")),
            (4.0, 0.0, _templates("0.5", templates.related, "templates, related")),
            (8.0, 8.0, _rewritten("0", captions, captions.far, "captions, no word shared")),
            (3.5, 3.5, _rewritten("0", prose, prose.far, "prose, no word shared")),
            (2.5, 2.5, _templates("0", templates.unrelated, "templates, unrelated")),
            (2.5, 2.5, self._mixed_far),
            (6.0, 6.0, self._nli_snli),
            (4.0, 4.0, self._nli_rules),
            (2.0, 2.0, self._nli_fewshot),
        ]

    def _image(self, rng: random.Random) -> tuple[str, str]:
        first, second = rng.sample(rng.choice(self.corpus.images), 2)
        return first, second

    def _same_image_close(self, rng: random.Random) -> Pair | None:
        best = max((self._image(rng) for _ in range(4)), key=lambda pair: self.captions.similarity(*pair))
        ratio = len(best[1].split()) / len(best[0].split())
        good = self.captions.similarity(*best) >= 0.55 and 0.6 < ratio < 1.7
        return Pair("1", *best, "captions of one image, close") if good else None

    def _between(
        self, label: str, pair: Callable[[random.Random], tuple[str, str]], low: float, high: float, kind: str
    ) -> Maker:
        """A pair whose similarity lies between two bounds."""

        def make(rng: random.Random) -> Pair | None:
            first, second = pair(rng)
            return Pair(label, first, second, kind) if low <= self.captions.similarity(first, second) <= high else None

        return make

    def _entailed(self, rng: random.Random) -> tuple[str, str]:
        return rng.choice(self.snli["entailment"])[1:]

    def _not_entailed(self, rng: random.Random) -> tuple[str, str]:
        return rng.choice(self.snli[rng.choice(["neutral", "contradiction"])])[1:]

    def _prose_neighbour(self, rng: random.Random) -> Pair | None:
        number = rng.randrange(len(self.prose.sentences) - 1)
        first, following = self.prose.sentences[number : number + 2]
        if self.prose.similarity(first, following) >= 0.1 and rng.random() < 0.5:
            return Pair("0.5", first, following, "prose, following sentence with shared words")
        second = self.prose.middle(first, rng)
        return Pair("0.5", first, second, "prose, some words shared") if second else None

    def _mixed_far(self, rng: random.Random) -> Pair | None:
        sides = [rng.choice(self.captions.sentences), rng.choice(self.prose.sentences), templates.draw(rng).text]
        first, second = rng.sample(sides, 2)
        return None if content(first) & content(second) else Pair("0", first, second, "two sources, no word shared")

    def _nli_snli(self, rng: random.Random) -> Pair | None:
        kind = rng.choice(["entailment", "contradiction"])
        _, first, second = rng.choice(self.snli[kind])
        return Pair("entails" if kind == "entailment" else "contradicts", first, second, f"SNLI {kind}")

    def _nli_rules(self, rng: random.Random) -> Pair | None:
        first = rng.choice((self.captions if rng.random() < 0.6 else self.prose).sentences)
        if rng.random() < 0.5:
            second = rules.simplify(first, rng)
            return Pair("entails", first, second, "simplified by rules") if second else None
        short = rules.simplify(first, rng) if rng.random() < 0.5 else first
        second = (rules.negate if rng.random() < 0.5 else rules.swap)(short or first, rng)
        return Pair("contradicts", first, second, "negated or swapped by rules") if second else None

    def _nli_fewshot(self, rng: random.Random) -> Pair | None:
        label, first, second = rng.choice(self.corpus.fewshot)
        return Pair(label, first, second, f"few-shot, {label}")

    def _allowed(self, pair: Pair) -> bool:
        first, second = normalise(pair.first), normalise(pair.second)
        if not first or not second or (first == second and pair.label != "1"):
            self.rejected["empty or identical"] += 1
            return False
        if first in self.corpus.blocked or second in self.corpus.blocked:
            self.rejected["evaluation or held-out sentence"] += 1
            return False
        return pair.first != pair.second

    def draw(self, rng: random.Random, count: int, late: bool) -> Iterator[Pair]:
        """``count`` pairs; kinds that find nothing try again, so that the shares hold."""
        shares = [of_late if late else of_early for of_early, of_late, _ in self.kinds]
        for maker in rng.choices([maker for _, _, maker in self.kinds], shares, k=count):
            for _ in range(20):
                pair = maker(rng)
                if pair is None:
                    continue
                pair = Pair(pair.label, clean(pair.first), capitalise(clean(pair.second)), pair.kind)
                if self._allowed(pair):
                    yield pair
                    break


def word_salad(vocabulary: list[str], rng: random.Random) -> Pair:
    """Random words, copied but for one left out: teaches copying whatever the words are."""
    words = rng.choices(vocabulary, k=rng.randint(5, 14))
    copied = list(words)
    del copied[rng.randrange(len(copied))]
    return Pair("1", " ".join(words), " ".join(copied), "random words")
