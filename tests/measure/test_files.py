"""Measurement files: what is written is read back exactly and fits the schema; what strangers send is refused."""

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxperf.graph import Note
from onnxperf.ground import codec
from onnxperf.ground.errors import UsageError
from onnxperf.measure import files
from onnxperf.measure.files import parse, read, write
from onnxperf.measure.record import (
    Copies,
    Measurement,
    OperatorTime,
    Place,
    Point,
    Reading,
    Setting,
    Subject,
    Throughput,
    WarmUp,
)
from onnxperf.measure.series import Series

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMA = json.loads((resources("onnxperf.measure") / "measurement.schema.json").read_text(encoding="utf-8"))
TEXT = st.text(max_size=20)
COUNT = st.integers(0, 2**63 - 1)
ONE = st.integers(1, 2**40)
SECONDS = st.floats(0, 1e6).map(lambda x: round(x, 9))
READ = st.none() | st.floats(-1e6, 1e6)
SERIES = st.builds(Series, st.lists(SECONDS, min_size=1, max_size=30).map(tuple))


def several(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=4).map(tuple)


def named(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(TEXT, items, max_size=3).map(lambda d: tuple(d.items()))


MEASUREMENTS = st.builds(
    Measurement,
    taken=TEXT,
    subject=st.builds(Subject, TEXT, TEXT, COUNT, st.sampled_from(["stored", "random"]), st.binary(max_size=50)),
    place=st.builds(Place, st.sampled_from(["gpu", "cpu"]), TEXT, TEXT, COUNT, COUNT, TEXT),
    setting=st.builds(Setting, TEXT, TEXT, TEXT, COUNT, named(several(COUNT)), named(TEXT), named(TEXT)),
    clock=TEXT,
    scope=TEXT,
    warm_up=st.builds(WarmUp, SECONDS, SECONDS, COUNT, SECONDS, st.booleans()),
    device=SERIES,
    wall=SERIES,
    profiled=st.none() | SERIES,
    operators=several(st.builds(OperatorTime, TEXT, TEXT, TEXT, ONE, SECONDS, SECONDS)),
    hosted=several(TEXT),
    copies=st.none() | st.builds(Copies, SECONDS, SECONDS, COUNT, COUNT),
    throughput=st.none()
    | st.builds(
        Throughput,
        several(st.builds(Point, ONE, st.none() | SECONDS)),
        ONE,
        ONE,
        st.floats(1e-9, 1e6).map(lambda x: round(x, 9)),
    ),
    readings=several(st.builds(Reading, SECONDS, READ, READ, READ, READ)),
    warnings=several(st.builds(Note, TEXT, TEXT, several(TEXT))),
    complete=st.booleans(),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(MEASUREMENTS)
def test_what_is_written_is_read_back_and_fits_the_schema(m: Measurement) -> None:
    text = write(m)
    assert parse(text) == m
    assert write(parse(text)) == text
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_file_of_an_earlier_version_is_read_and_written_as_it_was(on_a_gpu: Measurement) -> None:
    text = (GOLDEN / "measurement.json").read_text(encoding="utf-8")
    assert parse(text) == on_a_gpu
    assert [*lines(write(on_a_gpu))] == [*lines(text)]


def lines(text: str) -> Iterator[str]:
    """The lines of a file but the one that is compressed, which may differ between versions of zlib."""
    return (line for line in text.splitlines() if "zlib" not in line)


def test_times_are_rounded_to_the_nanosecond_and_statistics_are_of_what_is_written(on_a_gpu: Measurement) -> None:
    fine = replace(on_a_gpu, device=Series((1.2e-9, 1.4e-9, 3.4e-9)))
    data = json.loads(write(fine))
    assert data["device_time"]["samples_seconds"] == [1e-9, 1e-9, 3e-9]
    assert data["device_time"]["mean_seconds"] == 2e-9  # and 2 of the samples as they were
    assert data["device_time"]["drift"] == 2.0  # and 1.83
    assert data["seconds"] == data["device_time"]["median_seconds"]


def test_the_schema_allows_no_other_key(on_a_gpu: Measurement) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for path in objects(json.loads(write(on_a_gpu))):
        if path[-2:] in (["setting", "inputs"], ["setting", "options"], ["setting", "software"]):
            continue
        data = json.loads(write(on_a_gpu))
        inner(data, path)["surprise"] = 1
        assert not validator.is_valid(data), path
        with pytest.raises(UsageError, match=r"surprise|schema_version"):
            parse(json.dumps(data))


def objects(data: Any, path: tuple[Any, ...] = ()) -> list[list[Any]]:
    """The ways to every object in plain data."""
    found = [list(path)] if isinstance(data, dict) else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return found + [p for key, item in items for p in objects(item, (*path, key))]


def inner(data: Any, path: list[Any]) -> Any:
    for key in path:
        data = data[key]
    return data


@pytest.mark.parametrize("optional", ["profiled_time", "copies", "throughput"])
def test_what_was_not_taken_is_null(on_a_cpu: Measurement, optional: str) -> None:
    assert json.loads(write(on_a_cpu))[optional] is None
    assert parse(write(on_a_cpu)) == on_a_cpu


def test_every_key_is_needed_but_statistics(on_a_gpu: Measurement) -> None:
    whole = json.loads(write(on_a_gpu))
    for path in objects(whole):
        if path[-2:] in (["setting", "inputs"], ["setting", "options"], ["setting", "software"]):
            continue
        for key in inner(whole, path):
            data = json.loads(write(on_a_gpu))
            del inner(data, path)[key]
            statistic = path[-1:] in (["device_time"], ["wall_time"], ["profiled_time"]) and key in Series.DERIVED
            if statistic or (path, key) in (([], "seconds"), (["throughput"], "samples_per_second")):
                assert parse(json.dumps(data)) == on_a_gpu
            else:
                with pytest.raises(UsageError, match=key):
                    parse(json.dumps(data))


def test_statistics_are_worked_out_anew(on_a_gpu: Measurement) -> None:
    data = json.loads(write(on_a_gpu))
    data["seconds"] = data["device_time"]["median_seconds"] = 1e-9
    assert parse(json.dumps(data)).seconds == on_a_gpu.seconds


BOMB = base64.b64encode(zlib.compress(bytes(codec.MAX_UNPACKED + 1), 9)).decode()
WRONG = [
    (["device_time", "samples_seconds", 3], -1e-3),
    (["device_time", "samples_seconds", 3], True),
    (["device_time", "samples_seconds", 3], "1"),
    (["device_time", "samples_seconds", 3], 10**400),
    (["device_time", "samples_seconds"], []),
    (["device_time", "samples_seconds"], {}),
    (["device_time"], None),
    (["place", "kind"], "tpu"),
    (["place", "kind"], ["gpu"]),
    (["place", "memory_bytes"], 1.5),
    (["place", "memory_bytes"], -1),
    (["place", "memory_bytes"], 2**64),
    (["place", "name"], 7),
    (["place", "name"], "x" * 10_001),
    (["setting", "inputs"], [["x", [1]]]),
    (["setting", "inputs", "input_ids"], [1, "2"]),
    (["setting", "options"], {"a": 1}),
    (["operators", 0, "runs"], 0),
    (["operators"], "Conv"),
    (["throughput", "seconds"], 0),
    (["throughput", "batches"], False),
    (["complete"], 1),
    (["readings", 0, "power_W"], "61"),
    (["model", "skeleton_zlib_base64"], "no base64!"),
    (["model", "skeleton_zlib_base64"], base64.b64encode(b"no zlib").decode()),
    (["model", "skeleton_zlib_base64"], base64.b64encode(zlib.compress(b"abc" * 99)[:-6]).decode()),
    (["model", "skeleton_zlib_base64"], base64.b64encode(zlib.compress(b"abc") + b"more").decode()),
    (["model", "skeleton_zlib_base64"], BOMB),
]


@pytest.mark.parametrize("path, value", WRONG, ids=[f"{'.'.join(map(str, p))}-{i}" for i, (p, _) in enumerate(WRONG)])
def test_what_a_stranger_sends_is_refused_in_one_sentence(
    on_a_gpu: Measurement, tmp_path: Path, path: list[Any], value: Any
) -> None:
    data = json.loads(write(on_a_gpu))
    inner(data, path[:-1])[path[-1]] = value
    target = tmp_path / "sent.json"
    target.write_text(json.dumps(data))
    with pytest.raises(UsageError) as refused:
        read(target)
    said = str(refused.value)
    assert said.startswith(f"{target}: ") and "\n" not in said and len(said) < 500
    assert next(k for k in reversed(path[: len(path) - (value == [])]) if isinstance(k, str)) in said


@pytest.mark.parametrize(
    "text, why",
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "are nested too deeply"),
        (b"9" * 5000, "not JSON: a number has 5,000 digits"),
        (b"[]", "not a measurement"),
        (b"{}", "not a measurement"),
        (b'{"schema_version": 2}', "schema_version is 2"),
        (b'{"schema_version": true}', "schema_version is true"),
        (b'{"schema_version": 1}', "not a measurement that onnxperf measure wrote: it has no taken"),
        (b'{"schema_version": 1, "seconds": NaN}', "NaN"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, text: bytes, why: str) -> None:
    target = tmp_path / "m.json"
    target.write_bytes(text)
    with pytest.raises(UsageError, match=why):
        read(target)


def test_infinities_are_no_times(on_a_gpu: Measurement) -> None:
    text = write(on_a_gpu)
    before, samples, after = text.partition('"samples_seconds": [')
    for wrong in ("1e999", "-Infinity", "NaN"):
        with pytest.raises(UsageError):
            parse(f"{before}{samples}{wrong},{after}")


def test_files_that_are_not_there_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, says in (
        (tmp_path / "none.json", "no such file"),
        (tmp_path, "can't read"),
        ("nul\0.json", "can't read"),
    ):
        with pytest.raises(UsageError, match=says):
            read(path)
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    (tmp_path / "large.json").write_text(" " * 11)
    with pytest.raises(UsageError, match="larger than"):
        read(tmp_path / "large.json")


def test_what_could_not_be_read_back_is_not_written(on_a_gpu: Measurement) -> None:
    with pytest.raises(UsageError, match="memory_bytes"):
        write(replace(on_a_gpu, place=replace(on_a_gpu.place, memory_bytes=-1)))


def test_a_small_file_makes_no_large_model(on_a_gpu: Measurement) -> None:
    """Each byte of a model without weights takes a hundred of memory where it is read."""
    data = json.loads(write(on_a_gpu))
    for size, fits in ((4 << 20, True), ((4 << 20) + 1, False)):
        data["model"]["skeleton_zlib_base64"] = base64.b64encode(zlib.compress(bytes(size), 9)).decode()
        if fits:
            assert len(parse(json.dumps(data)).subject.skeleton) == size
        else:
            with pytest.raises(UsageError, match="larger than 4 MiB unpacked"):
                parse(json.dumps(data))
