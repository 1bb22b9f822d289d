"""The sentence-transformers trainer with this project's manners: progress on stderr, no silent NaN, marked checkpoints.

The checkpoint is chosen by Spearman correlation on the validation splits of the training data themselves (their mean
when there are several), never on an evaluation set.
"""

import math
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.evaluation import SequentialEvaluator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hub.errors import RunError
from training.checkpoints import mark_whole
from training.data import TrainingSet
from training.losses import build_loss

DIVERGED = "lower arguments.learning_rate, or give it a longer warm-up"


class StudentTrainer(SentenceTransformerTrainer):
    """Stops at the first loss that is not finite; writes no model cards (a card is another stage's work)."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of one batch. Raises RunError when it is NaN or infinite."""
        result = super().compute_loss(*args, **kwargs)
        loss = result[0] if isinstance(result, tuple) else result
        if not torch.isfinite(loss):
            place = f"training, step {self.state.global_step + 1}"
            raise RunError(place, f"the loss is {loss.item()}", hint=DIVERGED)
        return result

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """None: it would collect training sentences for a card."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        self.model.save_pretrained(output_dir or str(self.args.output_dir), create_model_card=False)


class Progress(TrainerCallback):
    """A bar over all steps, on stderr, with the newest loss and validation score."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.shown: dict[str, str] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar where a resumed run stands."""
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", desc="training")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance to the state's step."""
        self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Show the newest numbers."""
        names = {"loss": "loss", "eval_sequential_score": "validation"}
        self.shown |= {names[key]: f"{value:.4f}" for key, value in (logs or {}).items() if key in names}
        self.bar.set_postfix(self.shown)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        self.bar.close()


class Checks(TrainerCallback):
    """Refuses an undefined validation score; logs before, and marks after, every checkpoint.

    Upstream loses the loss summed up since the last log when a run is resumed, so the curve of a resumed run would
    differ from that of an uninterrupted one.
    """

    def __init__(self, fingerprint: str):
        self.fingerprint = fingerprint

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log at every step that is saved."""
        control.should_log = control.should_log or control.should_save

    on_epoch_end = on_step_end

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Raise RunError when the validation score is NaN: every checkpoint would pass for the best."""
        score = (metrics or {}).get("eval_sequential_score")
        if score is not None and math.isnan(score):
            place = f"training, step {state.global_step}"
            raise RunError(place, "the validation score is NaN: all embeddings coincide or are NaN", hint=DIVERGED)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Mark the checkpoint just written."""
        mark_whole(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", self.fingerprint)


def validation_evaluator(sets: list[TrainingSet], batch_size: int) -> SequentialEvaluator | None:
    """Spearman of the cosine on every sts validation split, and their mean; None when there is no such split."""
    evaluators = [
        EmbeddingSimilarityEvaluator(
            item.validation["sentence1"][:],
            item.validation["sentence2"][:],
            item.validation["score"][:],
            batch_size=batch_size,
            main_similarity="cosine",
            similarity_fn_names=["cosine"],
            name=item.name,
            write_csv=False,
        )
        for item in sets
        if item.spec.form == "sts" and item.validation is not None
    ]
    if not evaluators:
        return None
    return SequentialEvaluator(evaluators, main_score_function=lambda scores: sum(scores) / len(scores))


def make_trainer(
    student: SentenceTransformer,
    sets: list[TrainingSet],
    arguments: SentenceTransformerTrainingArguments,
    evaluator: SequentialEvaluator | None,
    fingerprint: str,
) -> StudentTrainer:
    """A trainer over all datasets, each with its own loss."""
    trainer = StudentTrainer(
        model=student,
        args=arguments,
        train_dataset=DatasetDict({item.name: item.train for item in sets}),
        loss={item.name: build_loss(item.spec.loss, student) for item in sets},
        evaluator=evaluator,
        callbacks=[Progress(), Checks(fingerprint)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
