"""What a prompt is made of: first texts, few-shot examples, instructions, chat templates."""
