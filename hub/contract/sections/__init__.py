"""The sections of a recipe: a key and its limits stand where the section does. ``hub.contract.recipe`` joins them."""
