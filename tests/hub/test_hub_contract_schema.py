"""hub.contract.schema: which columns each config of each kind of recipe has."""

from card_runs import FEW_SHOT, dataset_recipe

from hub.contract.recipe import config_features
from hub.contract.schema import EXAMPLE_SET, PROVENANCE

FEW = {"few_shot": FEW_SHOT}


def test_only_few_shot_recipes_have_example_sets():
    few, none = dataset_recipe("nli", changes=FEW), dataset_recipe("nli")
    for config in few.configs:
        assert set(EXAMPLE_SET) <= set(config_features(config, few))
    for config in none.configs:
        assert not set(EXAMPLE_SET) & set(config_features(config, none))
    model = dataset_recipe("nli", "model", FEW)
    assert model.configs[-1] == "sources" and not set(EXAMPLE_SET) & set(config_features("sources", model))


def test_the_default_config_comes_first_and_each_shot_count_has_its_own():
    assert dataset_recipe("nli", changes=FEW).configs == (
        *("triplet-0shot", "pair-class-0shot", "raw-0shot", "rejected-0shot"),
        *("triplet-5shot", "pair-class-5shot", "raw-5shot", "rejected-5shot"),
    )
    assert dataset_recipe("text").configs == ("postprocessed", "raw", "rejected")


def test_single_texts_have_the_labels_of_their_recipe():
    recipe = dataset_recipe("text")
    features = config_features("postprocessed", recipe)
    assert list(features) == ["text", "label", *PROVENANCE]
    assert features["label"].names == ["good", "bad"]
    assert b"good" in features.arrow_schema.metadata[b"huggingface"]
