"""The card's stamp tells a card as it was written from one that was edited, and from one of other facts."""

from hub.client.plan import Stamp, facts_digest, read_stamp, stamped


def test_a_stamped_card_says_its_repository_and_facts():
    card = stamped("# A card\n", "acme/pairs", facts_digest(b"{}", None))
    assert read_stamp(card) == Stamp("acme/pairs", facts_digest(b"{}", None))
    assert card.startswith("# A card\n") and card.endswith("-->\n")


def test_an_edited_card_has_no_stamp():
    card = stamped("# A card\n", "acme/pairs", facts_digest(b"{}", b"{}"))
    for edited in (card.replace("A card", "My card"), card + "more\n", card.replace("acme", "evil"), "# A card\n", ""):
        assert read_stamp(edited) is None


def test_the_facts_are_the_bytes_of_manifest_results_and_repeats():
    measured = (None, b"", b"a")
    digests = {facts_digest(m, r, again) for m in (b"a", b"b") for r in measured for again in measured}
    assert len(digests) == 18
    for place in range(4):  # repeats, value, fidelity, decontamination: each tells, and none stands for another
        assert len({facts_digest(b"a", r, *[None] * place, v) for r in measured for v in measured}) == 9
    assert len({facts_digest(b"a", None, *[None] * place, b"x") for place in range(4)}) == 4
