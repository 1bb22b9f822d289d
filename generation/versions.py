"""What decides a run's bytes besides its recipe and inputs: the libraries and our own code.

A run that one version begins must not be finished by another: its rows would be a mixture that neither can make again.
So ``hub.run_dir.begin`` compares what stands here with the manifest and refuses to go on. Our code is told by a digest
(``generation.source_digest``) over the modules that a run can reach, not by a number that somebody must remember to
raise. A module counts unless ``ASIDE`` says why it decides no row, so one that is new cannot be forgotten. Library
versions are compared whole: a patch release of torch may change the last bit of a sum, and one bit may change a token.
"""

import importlib.metadata
from functools import cache
from pathlib import Path

from generation.source_digest import ROOT, digest_of, module_digests

LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy")
CODE = "sts-dino code"
_WORK = "generation.job"  # what a run calls
ASIDE = {
    "generation.backends.usage": "counts what a server's answers cost",
    "generation.progress": "the progress bar",
    "generation.provenance": "what the manifest says of the inputs",
    "generation.source_digest": "this digest",
    "generation.timing": "seconds, beside the run directory",
    "generation.versions": "this digest",
    "hub.cli": "talk on stderr, exit codes",
    "hub.client": "how long a Hub may take, and how its failures are known",
    "hub.errors": "how a problem is said",
    "hub.interruption": "signals, exit codes",
    "hub.memory": "the peak that is shown",
    "hub.model_sections": "recipes of models",
    "hub.printable": "text on its way to a terminal",
    "hub.recipe_file": "what it reads is in the fingerprint",
    "hub.remote": "how a Hub's failure is said",
    "hub.run_dir": "the manifest, which is written anew as a whole",
}


def versions() -> dict[str, str]:
    """Library → version, and the digest of our own code."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES} | {CODE: code_digest()}


@cache
def code_digest() -> str:
    """SHA-256, shortened, over the code of ours that decides rows."""
    return digest_of(deciding_modules())


def deciding_modules(root: Path = ROOT) -> dict[str, str]:
    """Module → SHA-256 of its code: all that a run can reach but ``ASIDE``."""
    return module_digests(_WORK, ASIDE, root)
