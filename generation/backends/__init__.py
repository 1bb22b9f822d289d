"""Writers for prompts without counter-labels: an OpenAI-compatible server, or vLLM in this process. docs/backends.md"""
