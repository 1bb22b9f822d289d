"""sts_dino.generation.inputs.prompts: what stands before the model, word for word as the papers
show it.
"""

from small_runs import small_recipe

from sts_dino.generation.inputs.examples import Example
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.hub.contract.recipe import DatasetRecipe, Variant

ENTAILMENT = (
    'Generate one sentence that logically entails "<X1>" in the form of a statement '
    'beginning with "Answer:". Answer: "'
)
CONTRADICTION = ENTAILMENT.replace("entails", "contradicts")
EXAMPLES = {"kind": "file", "path": "nli.tsv", "labels": {"entailment": "0", "contradiction": "2"}}


def recipe(end='"', **changes) -> DatasetRecipe:
    few_shot = {
        "shots": [0, 2],
        "sets": 2,
        "end": end,
        "examples": {**EXAMPLES, "description": "-", "license": "CC0"},
    }
    labels = [
        {"name": "entailment", "instruction": ENTAILMENT},
        {"name": "contradiction", "instruction": CONTRADICTION, "counter_labels": ["entailment"]},
    ]
    return small_recipe("nli", **{"labels": labels, "few_shot": few_shot, **changes})


def sets():
    names = ("entailment", "contradiction")
    return {
        2: [
            {
                name: [Example(i, f"Premise {one + i}.", f"{name} {one + i}.") for i in range(2)]
                for name in names
            }
            for one in (1, 3)
        ]
    }


def prompts(**changes) -> Prompts:
    return Prompts(recipe(**changes), sets())


def test_without_examples_the_prompt_is_the_instruction_after_the_separator():
    """The Auto-NLI authors put a line break between no examples and the prompt; without few_shot
    there is none.
    """
    entailment, contradiction = recipe().labels
    prompt, counters = prompts().make_prompts(contradiction, "It rains.", Variant(0, 0))
    assert prompt == "\n" + CONTRADICTION.replace("<X1>", "It rains.")
    assert counters == ("\n" + ENTAILMENT.replace("<X1>", "It rains."),)
    assert prompts(few_shot=None).make_prompts(entailment, "It rains.", Variant(None, 0)) == (
        counters[0][1:],
        (),
    )


def test_examples_stand_before_the_prompt_one_a_line():
    """Auto-NLI section 3.2."""
    prompt, counters = prompts().make_prompts(recipe().labels[1], "It rains.", Variant(2, 1))
    assert prompt == (
        'Generate one sentence that logically contradicts "Premise 3." in the form of a statement '
        'beginning with "Answer:". Answer: "contradiction 3."\n'
        'Generate one sentence that logically contradicts "Premise 4." in the form of a statement '
        'beginning with "Answer:". Answer: "contradiction 4."\n'
        'Generate one sentence that logically contradicts "It rains." in the form of a statement '
        'beginning with "Answer:". Answer: "'
    )
    assert counters == (
        prompt.replace("contradicts", "entails").replace("contradiction ", "entailment "),
    )


def test_prefixes_are_what_the_prompts_share_and_a_placeholder_in_a_text_stays_text():
    made = prompts()
    for variant in (Variant(0, 0), Variant(2, 0), Variant(2, 1)):
        for label, prefix in zip(recipe().labels, made.list_prefixes(variant), strict=True):
            for text in ("It rains.", "Write <X1> here"):
                prompt, _ = made.make_prompts(label, text, variant)
                assert prompt.startswith(prefix) and prompt[len(prefix) :].startswith(text + '"')


def test_provenance_names_the_rows_of_every_set():
    found = prompts().describe_examples()["examples"]
    assert found["rows"] == {"2shot": [{"entailment": [0, 1], "contradiction": [0, 1]}] * 2}
    assert found["path"] == "nli.tsv" and "repo_id" not in found
    assert prompts(few_shot=None).describe_examples() == {}
