"""Post-processing of raw rows, per example type (sts, nli, text): which rows stay, their split, and the finished rows.

Written independently of the pipeline that made the published files, so that the two check each other.
``remade(repository)`` yields (config, part, rows), one raw shard at a time, in order of publication. A part is
a split, or ``sifted`` or ``late``: rows of ``rejected`` that post-processing dropped in their shard, or across shards.
"""

import functools
import hashlib
import math
import sqlite3
from collections import Counter

from .published_dataset import PROVENANCE, config_name

POOL = 256  # pairs that sampled negatives are chosen from, if so many can be had
PARTNERS = 16  # shards read for them, at most


def hashed(*identity):
    """64 bits that belong to an identity: BLAKE2b of its parts, joined by the unit separator."""
    text = "\x1f".join(str(part) for part in identity)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def by_split(spec, rows):
    """Rows by the split of their first text, which a hash of it decides."""
    splits = {"train": [], "validation": []}
    for row in rows:
        share = hashed(spec.seed, "split", row["text1"]) / 2**64
        splits["validation" if share < spec.validation_fraction else "train"].append(row)
    return splits


def label_shift(spec, raw):
    """Label → nats that its log-likelihoods are lowered by: its mean over the texts of a shard, all labels alike."""
    centred = {name: [] for name in spec.targets}
    for row in raw:
        if row["text1"] != row["text2"]:
            level = math.fsum(row["log_likelihoods"].values()) / len(spec.targets)
            centred[row["target"]].append({name: row["log_likelihoods"][name] - level for name in spec.targets})
    if not spec.verification["calibrated"] or not all(centred.values()):
        return dict.fromkeys(spec.targets, 0.0)
    return {
        name: math.fsum(math.fsum(row[name] for row in rows) / len(rows) for rows in centred.values()) / len(centred)
        for name in spec.targets
    }


def shifted(row, shift):
    """Label → log-likelihood of a row, without what is common to its label."""
    return {name: row["log_likelihoods"][name] - shift[name] for name in shift}


def unverified(spec, raw):
    """The reason of each raw row that verification drops: another label fits better, or other texts of its label do."""
    if not spec.verification:
        return {}
    shift, reasons, cells = label_shift(spec, raw), {}, {}
    for number, row in enumerate(raw):
        nats = shifted(row, shift)
        if spec.verification["drop"] and nats[row["target"]] < max(nats.values()):
            reasons[number] = "other_label"
        elif row["text1"] != row["text2"]:
            texts = cells.setdefault((row["text1"], row["target"]), {})
            texts.setdefault(row["text2"], (-row["label_probability"], number))
    if spec.verification["best_of"] > 1:
        best = {cell: sorted(texts, key=texts.get)[: spec.samples[cell[1]]] for cell, texts in cells.items()}
        for number, row in enumerate(raw):
            if row["text2"] not in best.get((row["text1"], row["target"]), ()):
                reasons.setdefault(number, "not_best")
    return reasons


def sift(spec, raw):
    """Kept and dropped rows of a shard: no text equal to its first text, none twice, so many of a label."""
    kept, dropped, seen, found, reasons = [], [], set(), Counter(), unverified(spec, raw)
    for number, row in enumerate(raw):
        cell, text = (row["text1"], row["target"]), (row["text1"], row["target"], row["text2"])
        if row["text1"] == row["text2"]:
            dropped.append({**row, "reason": "identical"})
        elif number in reasons:
            dropped.append({**row, "reason": reasons[number]})
        elif text in seen:
            dropped.append({**row, "reason": "duplicate"})
        elif found[cell] == spec.max_per_label:
            dropped.append({**row, "reason": "over_cap"})
        else:
            kept.append(row)
            seen.add(text)
            found[cell] += 1
    return soft(spec, kept, raw), dropped


def soft(spec, kept, raw):
    """Kept rows, with the score that their label probabilities expect where the recipe asks for soft scores."""
    if spec.verification.get("scores") != "soft":
        return kept
    shift, hard = label_shift(spec, raw), {name: smoothed(spec, name) for name in spec.scores}
    expected = {name: [] for name in hard}
    for row in kept:
        nats = shifted(row, shift)
        top = max(nats.values())
        weights = {name: math.exp((nats[name] - top) / spec.verification["temperature"]) for name in nats}
        total = math.fsum(weights.values())
        value = math.fsum(weights[name] / total * hard[name] for name in hard)
        expected[row["target"]].append(value)
    means = {name: math.fsum(values) / len(values) for name, values in expected.items() if values}
    widths = {name: width(hard[name], means[name], expected[name]) for name in means}
    values = {name: iter(expected[name]) for name in means}
    made = []
    for row in kept:
        name = row["target"]
        score = hard[name] + widths[name] * (next(values[name]) - means[name])
        made.append({**row, "score": min(1.0, max(0.0, score))})
    return made


def width(score, mean, expected):
    """The factor of at most 1 by which expected scores vary about a label's score without leaving [0, 1]."""
    factor = 1.0
    if max(expected) > mean:
        factor = min(factor, (1 - score) / (max(expected) - mean))
    if min(expected) < mean:
        factor = min(factor, score / (mean - min(expected)))
    return factor


def smoothed(spec, target):
    """The score of a label after smoothing."""
    return (1 - spec.smoothing) * spec.scores[target] + spec.smoothing / 2


def provenance(spec):
    """The columns of a row with one second text that say where it comes from."""
    return (*PROVENANCE, *spec.label_probability)


def origin(spec, row, names):
    """The columns of ``names`` that a row has, and its example set if there is one."""
    return {name: row[name] for name in (*names, *spec.example_set)}


def by_first_text(rows):
    """First text → its rows."""
    written = {}
    for row in rows:
        written.setdefault(row["text1"], []).append(row)
    return written


def scored(spec, row, text2, score):
    """A row of the config ``postprocessed`` of a dataset of scored pairs."""
    return {"sentence1": row["text1"], "sentence2": text2, "score": score, **origin(spec, row, provenance(spec))}


def scored_pairs(spec, rows, pool):
    """Rows with smoothed scores, then pairs of score 0 of each first text and texts that were written for others."""
    for row in rows:
        yield scored(spec, row, row["text2"], row["score"] if "score" in row else smoothed(spec, row["target"]))
    for text1, own in by_first_text(rows).items():
        taken = {text1, *(row["text2"] for row in own)}
        for number in range(spec.sampled_negatives):
            seed = hashed(spec.seed, "negative", text1, number)
            turned = (pool[(seed + step) % len(pool)] for step in range(len(pool)))
            chosen = next((text2 for other, text2 in turned if other != text1 and text2 not in taken), None)
            if chosen is None:
                break
            taken.add(chosen)
            told = {"sample": number, "attempt": number, "seed": seed, "log_prob": None, "margin": None}
            told["label_probability"] = None
            yield scored(spec, {**own[0], **told, "target": "sampled"}, chosen, 0.0)


def partner_pool(pairs, index, blocks, split):
    """(text1, text2) of one split from the shards half the source away, until there are enough."""
    first, block, pool = index - index % blocks, index % blocks, []
    for step in range(min(blocks, PARTNERS)):
        pool += pairs(first + (block + blocks // 2 + step) % blocks)[split]
        if len(pool) >= POOL:
            break
    return pool


def remade_sts(repository):
    """Scored pairs, with sampled negatives."""
    spec = repository.spec
    for shots, sets in spec.sets.items():
        total = repository.raw_shards(shots)

        @functools.lru_cache(PARTNERS)
        def pairs(index, shots=shots):
            splits = by_split(spec, repository.sifted(shots, index)[0])
            return {split: [(row["text1"], row["text2"]) for row in rows] for split, rows in splits.items()}

        for index in range(total):
            kept, dropped = repository.sifted(shots, index)
            yield config_name("rejected", shots), "sifted", dropped
            for split, rows in by_split(spec, kept).items():
                pool = partner_pool(pairs, index, total // sets, split)
                yield config_name("postprocessed", shots), split, list(scored_pairs(spec, rows, pool))


def triplets(spec, rows):
    """The i-th entailed and the i-th contradicting text of each first text."""
    for text1, own in by_first_text(rows).items():
        positives, negatives = (
            [row["text2"] for row in own if row["target"] == target] for target in ("entailment", "contradiction")
        )
        for positive, negative in zip(positives, negatives):  # noqa: B905 - Python 3.9
            if positive != negative or spec.equal_triplets:
                texts = {"anchor": text1, "positive": positive, "negative": negative}
                yield {**texts, **origin(spec, own[0], ["source_id"])}


def classified_pairs(spec, rows):
    """Every text with its class."""
    for row in rows:
        label = spec.labels.index(row["target"])
        yield {
            "premise": row["text1"],
            "hypothesis": row["text2"],
            "label": label,
            **origin(spec, row, provenance(spec)),
        }


def remade_nli(repository):
    """Triplets, and pairs with their class."""
    spec = repository.spec
    for shots in spec.sets:
        for index in range(repository.raw_shards(shots)):
            kept, dropped = repository.sifted(shots, index)
            yield config_name("rejected", shots), "sifted", dropped
            for split, rows in by_split(spec, kept).items():
                yield config_name("triplet", shots), split, list(triplets(spec, rows))
                yield config_name("pair-class", shots), split, list(classified_pairs(spec, rows))


class SeenTexts:
    """An exact set of (label, text) in a temporary file, so that memory does not grow with it."""

    def __init__(self):
        self.table = sqlite3.connect("")
        self.table.execute("CREATE TABLE seen (target TEXT, text TEXT, PRIMARY KEY (target, text)) WITHOUT ROWID")

    def add(self, target, text):
        """Whether the text is new for the label."""
        return self.table.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (target, text)).rowcount == 1


def labelled(spec, row):
    """A row of the config ``postprocessed`` of a dataset of single texts."""
    return {"text": row["text2"], "label": spec.labels.index(row["target"]), **origin(spec, row, provenance(spec))}


def remade_text(repository):
    """Single texts with their class, none twice in the dataset."""
    spec = repository.spec
    for shots in spec.sets:
        seen = repository.seen.setdefault(shots, SeenTexts())
        for index in range(repository.raw_shards(shots)):
            kept, dropped = repository.sifted(shots, index)
            yield config_name("rejected", shots), "sifted", dropped
            new = [seen.add(row["target"], row["text2"]) for row in kept]
            late = [{**row, "reason": "duplicate"} for row, is_new in zip(kept, new) if not is_new]  # noqa: B905
            yield config_name("rejected", shots), "late", late
            rest = [row for row, is_new in zip(kept, new) if is_new]  # noqa: B905
            for split, rows in by_split(spec, rest).items():
                yield config_name("postprocessed", shots), split, [labelled(spec, row) for row in rows]


REMADE = {"sts": remade_sts, "nli": remade_nli, "text": remade_text}


def remade(repository):
    """(config, part, rows) of the whole dataset: of its first version, then of what each later one appended."""
    for part in repository.parts():
        yield from REMADE[repository.spec.form](part)
