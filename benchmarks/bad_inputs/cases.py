"""Every case, by the command that it is for."""

from benchmarks.bad_inputs.case import Case
from benchmarks.bad_inputs.corpora import CORPORA
from benchmarks.bad_inputs.encoders import ENCODERS
from benchmarks.bad_inputs.hubs import HUBS
from benchmarks.bad_inputs.recipes import RECIPES
from benchmarks.bad_inputs.runs import RUNS
from benchmarks.bad_inputs.writing import WRITING

CASES: tuple[Case, ...] = (*CORPORA, *RECIPES, *WRITING, *ENCODERS, *RUNS, *HUBS)
