"""What predictions load of constants is what their files say, and what the laboratory leaves out is beside them."""

from onnxperf.lab import constants
from onnxperf.lab.constants import left_out
from onnxperf.latency import shipped


def test_what_is_loaded_is_what_the_files_say() -> None:
    """Where this fails: `python -m onnxperf.lab.constants`, then look at what changed."""
    assert (constants.LATENCY / "constants.json").read_text(encoding="utf-8") == constants.loaded()


def test_the_laboratory_has_the_same_constants_and_those_of_baselines() -> None:
    tables = dict(left_out().tables)
    assert set(tables.pop("mlp")) >= {"bmm", "softmax"} and tables["interval"].pop("mlp")
    assert tables == shipped().tables and left_out().source == shipped().source
    left_out.cache_clear()


def test_a_die_that_is_left_out_changes_what_its_rows_told() -> None:
    of_all = left_out().tables
    assert left_out("TU104").tables != of_all == left_out("TU102").tables, "of TU102 there are no rows"
    assert not {"without"} & {key for name in constants.names() for key in constants.file_of(name)}
