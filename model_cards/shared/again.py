"""How a stranger makes a run again: where the code is had, the commands, and the checksums of what is read."""

from shlex import quote

from hub.contract.published_paths import is_of
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest
from hub.untrusted import Markdown, code
from model_cards.shared.facts import CodeFacts, Upstream

IN_THE_CLONE = "assets/"  # what the project's own files stand under
FOLDER = "published"
WEIGHTS = (".safetensors", ".gguf")
STAGES = {"dataset": "write", "model": "train"}  # by kind of run


def commands(repo_id: str, tag: str | None, manifest: Manifest, made_in: CodeFacts | None) -> str:
    """Shell lines that lead from nothing to the run. ``tag``: of the finished run; None while it grows."""
    kind = "--repo-type dataset " if manifest.kind == "dataset" else ""
    revision = f"--revision {tag} " if tag else ""
    return "\n".join(
        (
            *clone(made_in),
            f"hf download {repo_id} {RECIPE} {MANIFEST} {kind}{revision}--local-dir {FOLDER}",
            f"sts-dino {STAGES[manifest.kind]} {FOLDER}/{RECIPE}",
        )
    )


def clone(made_in: CodeFacts | None) -> tuple[str, ...]:
    """The lines that bring the code; nothing where the run was made outside of a clone of known address."""
    if made_in is None or made_in.url is None:
        return ()
    return (
        f"git clone {quote(made_in.url)} sts-dino && cd sts-dino",
        f"git checkout {quote(made_in.commit.removesuffix('-dirty'))}",
        "pip install -e . -c constraints.txt",
    )


def input_digest(path: str, manifest: Manifest) -> str | None:
    """SHA-256 of what a recipe's local path names: of a file itself, of a folder that of its weights; None: unknown."""
    found = {name: digest for name, digest in sorted(manifest.inputs.items()) if is_of(name, path)}
    inside = [name for name in found if not name.startswith(f"{path}/") or name.endswith(WEIGHTS)]
    return found[inside[0]] if inside else None


def made_from(upstream: Upstream | None) -> Markdown | None:
    """Where a language model's folder comes from; None where it does not say."""
    if upstream is None:
        return None
    packages = ", ".join(code(f"{name} {version}") for name, version in upstream.packages.items())
    return Markdown(
        f"{code(upstream.model)}, made{f' from {packages}' if packages else ''} by {code(upstream.made_by)}"
    )
