"""Inputs of generation: source sentences, few-shot examples, prompts, chat templates."""
