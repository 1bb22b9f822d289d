"""A writer over the HTTP API of an OpenAI-compatible server, for prompts without counter-labels. docs/backends.md"""
