"""What texts are written from: first texts, few-shot examples, instructions, chat templates, GGUF files."""
