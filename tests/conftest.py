"""What all rooms share: which tests are slow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before NumPy is loaded: on small matrices its threads only wait for each other, and tests run side by side as it is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TESTS = Path(__file__).parent
#: Exporters, comparisons with other programs, fits, scores and processes: whole files, and tests of other files. The
#: quick loop does not even import these files. A test may also be marked where it stands.
SLOW = (
    "derive/test_constants.py",
    "derive/test_host.py",
    "derive/test_tensor.py",
    "export/test_command.py",
    "export/test_from_tf.py",
    "export/test_from_torch.py",
    "graph/test_against_ort.py",
    "graph/test_flow.py::test_depth_and_breadth_are_bounded",
    "graph/test_node_cases.py",
    "graph/test_skeleton.py",
    "latency/test_tensor.py::test_the_floor_is_hardly_ever_needed",
    "measure/test_files.py::test_what_is_written_is_read_back_and_fits_the_schema",
    "measure/test_measure.py",
    "measure/test_profile.py",
    "measure/test_show.py::test_a_batch_that_the_model_is_not_made_for",
    "measure/test_show.py::test_a_model_is_measured_shown_and_written",
    "measure/test_show.py::test_json_alone_on_stdout_with_a_curve_over_batches",
    "op_models/test_against_torch.py",
    "op_models/test_random_shapes.py::test_attributes_of_a_hostile_file_do_no_harm",
    "runtimes/test_engine.py::test_samples_stay_whole_at_every_level",
    "runtimes/test_oracle.py",
    "runtimes/test_ort_attention.py::test_the_optimizer_finds_attention_in_the_form_of_the_samples",
    "runtimes/test_tensorrt.py::test_fusion_leaves_products_and_nodes_as_they_are",
    "runtimes/test_torch_eager.py",
    "test_cli.py::test_a_full_or_closed_stdout_exits_with_4",
    "test_cli.py::test_a_reader_that_has_enough_is_no_error",
    "test_cli.py::test_an_exit_code_outlives_stderr",
    "test_cli.py::test_an_ascii_terminal_gets_ascii",
    "test_cli.py::test_json_into_a_named_stream_stands_before_the_table",
    "test_cli.py::test_python_m_and_version",
    "test_conformance.py",
    "test_explain.py::test_the_numbers_are_those_of_predict",
    "test_gates.py::test_inputs_of_the_action_are_data",
    "test_gates.py::test_limits_hold_though_nobody_reads",
    "test_gates.py::test_the_action_fails_where_a_limit_is_exceeded",
    "test_gates.py::test_the_action_passes_and_tells_of_every_model",
    "test_samples_run.py",
    "test_testing.py",
    "validate/test_measure_gpu.py",
)


def slow(path: Path, test: str = "") -> bool:
    """Whether a file as a whole, or one of its tests, is slow."""
    if not path.is_relative_to(TESTS):
        return False
    file = path.relative_to(TESTS).as_posix()
    return file in SLOW or f"{file}::{test}" in SLOW


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, leave out slow files, and with them PyTorch and TensorFlow."""
    return True if config.option.markexpr == "not slow" and slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow."""
    for item in items:
        if slow(item.path, getattr(item, "originalname", item.name)):
            item.add_marker("slow")
