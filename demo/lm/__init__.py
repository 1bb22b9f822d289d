"""The built-in demonstration language model: its data, its tokenizer and the script that trained it.

`python -m demo.lm.train --data DIR --out assets/demo-lm` builds everything from plain text.
"""
