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


PROMPT_EOL = r"""@misc{jiang-etal-2023-scaling,
  title = {Scaling Sentence Embeddings with Large Language Models},
  author = {Jiang, Ting and Huang, Shaohan and Luan, Zhongzhi and Wang, Deqing and Zhuang, Fuzhen},
  year = {2023},
  eprint = {2307.16645},
  archivePrefix = {arXiv},
}"""

DECLUTR = r"""@inproceedings{giorgi-etal-2021-declutr,
  title = {DeCLUTR: Deep Contrastive Learning for Unsupervised Textual Representations},
  author = {Giorgi, John and Nitski, Osvald and Wang, Bo and Bader, Gary},
  booktitle = {Proceedings of the 59th Annual Meeting of the Association for Computational Linguistics and the 11th
    International Joint Conference on Natural Language Processing},
  year = {2021},
  pages = {879--895},
  publisher = {Association for Computational Linguistics},
}"""


def cited(forms: set[str], debiased: bool, prompted: bool = False) -> str:
    """The entries for data of these forms and for what was done with it.

    DINO for scores, texts or self-debiasing, Auto-NLI for inference, DeCLUTR for documents, PromptEOL for a prompt.
    """
    wanted = {
        DINO: bool(forms & {"sts", "text"}) or debiased,
        AUTO_NLI: bool(forms & {"nli", "triplet", "pair-class"}),
        PROMPT_EOL: prompted,
        DECLUTR: "documents" in forms,
    }
    return "\n\n".join(entry for entry, is_cited in wanted.items() if is_cited)
