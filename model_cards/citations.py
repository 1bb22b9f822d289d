"""BibTeX of the papers a card may cite. CITATION.cff lists the same works; a test compares the titles."""

DINO = r"""@inproceedings{schick-schutze-2021-generating,
  title = {Generating Datasets with Pretrained Language Models},
  author = {Schick, Timo and Sch{\"u}tze, Hinrich},
  booktitle = {Proceedings of the 2021 Conference on Empirical Methods in Natural Language Processing},
  year = {2021},
  pages = {6943--6951},
  publisher = {Association for Computational Linguistics},
}"""

AUTO_NLI = r"""@misc{sato-etal-2024-auto-nli,
  title = {Improving Sentence Embeddings with an Automatically Generated NLI Dataset},
  author = {Sato, Soma and Tsukagoshi, Hayato and Sasano, Ryohei and Takeda, Koichi},
  year = {2024},
  eprint = {2402.15132},
  archivePrefix = {arXiv},
}"""


def cited(forms: set[str], debiased: bool) -> str:
    """The entries for data of these forms: DINO for scores, texts or self-debiasing, Auto-NLI for inference."""
    entries = []
    if forms & {"sts", "text"} or debiased:
        entries.append(DINO)
    if forms - {"sts", "text"}:
        entries.append(AUTO_NLI)
    return "\n\n".join(entries)
