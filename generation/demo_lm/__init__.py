"""The built-in demonstration language model: its data, its tokenizer and the script that trained it.

`python -m generation.demo_lm.train --data DIR --out assets/demo-lm` builds everything from plain text.
"""
