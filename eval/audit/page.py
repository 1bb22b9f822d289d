"""The page: welcome, one example after another, a last look back, the results. The only module that imports gradio.

Texts are shown in plain text boxes, never as HTML or Markdown. The browser is sent what its seat shows and no more: the
server keeps where a tab stands, and generated labels are read for the results alone. Nothing is loaded from elsewhere:
no fonts, telemetry, share link or run history. Requests under other host names than the loopback's are refused.
"""

import html
from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr
from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

from eval.audit.agreement import make_report, markdown, plain
from eval.audit.survey import LONGEST_NAME, AnnotatorSession, PageWords, Scale, Survey, words_in
from hub.errors import StsDinoError

STAGES = ("welcome", "question", "review", "results")
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
SYSTEM_FONTS = ["system-ui", "sans-serif"]
HEAD = """<style>
:root { --block-info-text-color: var(--body-text-color-subdued); }
.gradio-container { width: 100%; max-width: 46rem !important; margin: 0 auto !important; }
.shown-text textarea { font-size: 1.15rem !important; line-height: 1.5 !important; unicode-bidi: plaintext; opacity: 1;
  overflow-wrap: anywhere; color: var(--body-text-color); -webkit-text-fill-color: var(--body-text-color) !important; }
@supports (field-sizing: content) { /* the height that gradio sets is wrong after the window was resized */
  .shown-text textarea { field-sizing: content; height: auto !important; max-height: 60vh; }
}
.answer { justify-content: flex-start !important; text-align: left !important; white-space: normal; }
.answer { font-weight: 500 !important; }
.progress p { display: flex; justify-content: space-between; margin: 0 0 .25rem; }
.progress progress { width: 100%; height: .5rem; appearance: none; border: 0; background: var(--border-color-primary); }
.progress progress::-webkit-progress-bar { background: var(--border-color-primary); }
.progress progress::-webkit-progress-value { background: var(--color-accent); }
.progress progress::-moz-progress-bar { background: var(--color-accent); }
#report { overflow-x: auto; word-break: keep-all; }
#report th, #report td { padding: .35rem .5rem !important; border-color: var(--border-color-primary) !important; }
#report td, #report th { overflow-wrap: normal; }
#report td { white-space: nowrap; }
#report th:not(:first-child), #report td:not(:first-child) { text-align: right !important; }
</style>
<script>
document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.matches("input, textarea:not(:disabled)")) return;
  const ids = { ArrowLeft: "back", ArrowRight: "forward" };
  const id = /^[1-9]$/.test(event.key) ? "answer-" + event.key : ids[event.key];
  const button = id && document.getElementById(id);
  if (button) { button.click(); event.preventDefault(); }
});
</script>"""


def application(survey: Survey) -> FastAPI:
    """The web application, to be served on the loopback."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return gr.mount_gradio_app(
        app,
        _Page(survey).blocks,
        path="/",
        root_path="",
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        ssr_mode=False,
        show_error=False,
        theme=gr.themes.Default(font=SYSTEM_FONTS, font_mono=["monospace"]),
        head=HEAD,
    )


class _Page:
    """The components, and what each button does to them."""

    def __init__(self, survey: Survey):
        self._survey, self._scale = survey, survey.sample.examples.scale
        self._words = words_in(survey.sample.examples.language)
        with gr.Blocks(analytics_enabled=False, title=self._words.title) as self.blocks:
            self._seat = gr.State(AnnotatorSession())
            self._remembered = gr.BrowserState("", storage_key="annotator", secret="annotator")  # noqa: S106 - a name
            self._panels = dict(
                zip(STAGES, (self._welcome(), self._question(), self._review(), self._results()), strict=True)
            )
            self._connect()

    def _welcome(self) -> gr.Column:
        with gr.Column() as panel:
            guide = instructions(self._scale, len(self._survey.sample), self._words)
            gr.Markdown(f"# {self._words.title}\n\n{guide}")
            self._name = gr.Textbox(
                label=self._words.name, info=self._words.name_info,
                max_length=LONGEST_NAME, autofocus=True, elem_id="name",
            )  # fmt: skip
            self._start = gr.Button(self._words.start, variant="primary", elem_id="start")
        return panel

    def _question(self) -> gr.Column:
        with gr.Column(visible=False) as panel:
            self._progress = gr.HTML(elem_id="progress", elem_classes="progress")
            headings = self._survey.sample.examples.headings
            self._texts = [
                gr.Textbox(
                    label=heading, lines=2, max_lines=12, interactive=False, autoscroll=False, elem_classes="shown-text"
                )
                for heading in headings
            ]
            gr.Markdown(f"**{self._scale.question}**")
            self._answers = [
                gr.Button(answer_text(self._scale, place), elem_id=f"answer-{place + 1}", elem_classes="answer")
                for place in range(len(self._scale.labels))
            ]
            with gr.Row():
                self._back = gr.Button(f"← {self._words.back}", size="sm", min_width=100, elem_id="back")
                self._forward = gr.Button(f"{self._words.forward} →", size="sm", min_width=100, elem_id="forward")
        return panel

    def _review(self) -> gr.Column:
        with gr.Column(visible=False) as panel:
            heading = self._words.all_answered.format(total=len(self._survey.sample))
            gr.Markdown(f"## {heading}\n\n{self._words.still_back} **{self._words.then_final}**")
            self._show = gr.Button(self._words.show, variant="primary", elem_id="show")
            self._look_back = gr.Button(f"← {self._words.back}", size="sm", elem_id="look-back")
        return panel

    def _results(self) -> gr.Column:
        with gr.Column(visible=False) as panel:
            self._report = gr.Markdown(latex_delimiters=[], elem_id="report")
        return panel

    def _connect(self) -> None:
        survey = self._survey
        self._on([self._start.click, self._name.submit], lambda _, name: survey.join(name), [self._name])
        for button, label in zip(self._answers, self._scale.labels, strict=True):
            self._on([button.click], partial(survey.answer, label=label))
        for back in (self._back, self._look_back):
            self._on([back.click], partial(survey.move, step=-1))
        self._on([self._forward.click], partial(survey.move, step=+1))
        self._on([self._show.click], survey.finish)
        self.blocks.load(lambda name: name or gr.skip(), self._remembered, self._name, **QUIET)

    def _on(self, triggers: list[Any], act: Callable[..., AnnotatorSession], inputs: list[Any] | None = None) -> None:
        """Let ``act`` (seat, inputs...) → seat answer the triggers; show where it leads, from the top of the page."""

        def handler(seat: AnnotatorSession, *values: Any) -> dict[Any, Any]:
            try:
                after = act(seat, *values)
                if not after.annotator:
                    gr.Warning(self._words.restarted, duration=None)
                return self._shown(after)
            except StsDinoError as error:
                raise gr.Error(html.escape(str(error)), duration=None, print_exception=False) from None

        outputs = [
            self._seat, self._remembered, *self._panels.values(), self._progress, *self._texts, *self._answers,
            self._back, self._forward, self._report,
        ]  # fmt: skip
        done = gr.on(triggers, handler, [self._seat, *(inputs or [])], outputs, concurrency_limit=None, **QUIET)
        done.success(None, js="() => window.scrollTo(0, 0)", **QUIET)

    def _shown(self, seat: AnnotatorSession) -> dict[Any, Any]:
        """What changes in the browser when it stands at ``seat``."""
        view, total = self._survey.view(seat), len(self._survey.sample)
        updates: dict[Any, Any] = {self._seat: seat, self._remembered: seat.annotator}
        updates |= {panel: gr.update(visible=stage == view.stage) for stage, panel in self._panels.items()}
        if view.stage == "question":
            updates |= {self._progress: progress(view.place, view.answered, total, self._words)}
            updates |= dict(zip(self._texts, view.texts, strict=True))
            for button, label in zip(self._answers, self._scale.labels, strict=True):
                updates[button] = gr.update(variant="primary" if label == view.answer else "secondary")
            updates[self._back] = gr.update(interactive=view.place > 0)
            updates[self._forward] = gr.update(interactive=view.answer is not None)
        if view.stage == "results":
            updates[self._report] = markdown(make_report(self._survey.sample, self._survey.answers()))
        return updates


def instructions(scale: Scale, total: int, words: PageWords) -> str:
    """The instructions for annotators, as Markdown."""
    answers = "\n".join(f"- {plain(answer_text(scale, place))}" for place in range(len(scale.labels)))
    return words.instructions.format(total=total, question=scale.question, answers=answers, keys=len(scale.labels))


def answer_text(scale: Scale, place: int) -> str:
    """A button's text, e.g. ``0.9: mean (almost) the same thing``."""
    return f"{scale.labels[place]}: {scale.meanings[place]}" if scale.meanings[place] else scale.labels[place]


def progress(place: int, answered: int, total: int, words: PageWords) -> str:
    """Where the annotator is, as HTML made of numbers and the page's words."""
    where, done = words.place.format(place=place + 1, total=total), words.answered.format(answered=answered)
    text = f"<p><b>{where}</b> <span>{done}</span></p>"
    return f'{text}<progress value="{answered}" max="{total}"></progress>'
