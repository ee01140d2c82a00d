"""`accuracy.json`, which predictions read, says what the datasets and the printed pages do."""

from dataclasses import replace

import pytest

import gpu_specs
from onnxperf.answer.accuracy import MEASURED, accuracy
from onnxperf.ground.errors import Error
from onnxperf.lab.datasets import SAMPLE, model_runs
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.validate.measured import PRINTED, TO, text
from onnxperf.running.run import Run


@pytest.mark.slow
def test_the_file_is_what_the_datasets_and_pages_say() -> None:
    assert TO.read_text(encoding="utf-8") == text(), "stale: python -m onnxperf.lab.validate.measured"


def test_runs_of_the_sample_are_called_measured() -> None:
    """One of each runtime, release, precision, card and plan, but those whose release nobody told."""
    alike: dict[tuple[str, ...], MeasuredRun] = {}
    for models, runs, _ in model_runs(SAMPLE):
        for run in filter(models.ranged, runs):
            if run.precision != "keep" and (run.ort_version or run.runtime == "torch-eager"):
                key = run.runtime, run.ort_version or "", run.precision, run.gpu, run.part and "step", run.parallel
                alike.setdefault(key, run)
    assert len(alike) > 30
    graph = next(run.graph for run in alike.values() if run.model == "bert-base")
    for key, run in alike.items():
        answer = accuracy(Run(graph, (gpu_specs.load(run.gpu),), run.scenario))
        assert answer.status == MEASURED, (key, answer)


def test_a_page_without_the_figure_is_named() -> None:
    with pytest.raises(Error, match=r"language/accuracy\.md has no figure behind 'the moon'"):
        replace(PRINTED[-1], words="the moon").read()
