"""Hosts by name and by file."""

from pathlib import Path

import pytest

from gpu_specs import HOSTS, SpecError, load_host

FILE = """kind = "host"
name = "A processor"
pace = 0.5
half_width = 0.3
bandwidth_GBps = 50
GFLOPS = 400
source = "a test"
"""


def test_a_host_has_its_name() -> None:
    assert all(load_host(name) is host and host.name == name for name, host in HOSTS.items())


def test_a_file_is_read_in_si_units(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    h = load_host(str(path))
    assert (h.name, h.describe, h.pace, h.half_width) == ("mine", "A processor", 0.5, 0.3)
    assert (h.bandwidth_Bps, h.flops, h.source) == (50e9, 400e9, "a test")
    path.write_text(FILE.replace("0.3", "0"), encoding="utf-8")
    assert load_host(str(path)).half_width == 0.0


@pytest.mark.parametrize(
    "before, after, says",
    [
        ('"host"', '"gpu"', "kind is 'gpu'; it needs one of host"),
        ('kind = "host"', "", "kind is missing"),
        ("pace = 0.5", "pace = 0", "pace is 0; it needs a number"),
        ("pace = 0.5", "pace = nan", "pace is nan; it needs a number"),
        ("pace = 0.5", "pace = true", "pace is True; it needs"),
        ("pace = 0.5", "pase = 0.5", "unknown key 'pase'; did you mean 'pace'?"),
        ("0.3", "1000", "half_width is 1000; it needs a number from 0 to 4"),
        ("0.3", "-1", "half_width is -1; it needs a number from"),
        ("0.3", "false", "half_width is False; it needs"),
        ("A processor", "\\u001b[31m", "it needs a line of printable text"),
        ("A processor", '"', "is not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_sentence(before: str, after: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE.replace(before, after), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_host(str(path))
    assert str(caught.value).startswith(f"host file {str(path)!r}: ") and says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name, says", [
    ("a5", "unknown host 'a5': it is one of server-2018, "), ("no/such.toml", "no such file"),
    ("/dev/zero", "regular"),
    ("x" * 500, "..."), ("t4", "unknown host"),
])  # fmt: skip
def test_what_is_no_host_is_refused(name: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_host(name)
    assert says in str(caught.value) and len(str(caught.value)) < 300


def test_a_clock_sets_the_pace_of_a_host_and_cores_its_flops() -> None:
    h, usual = HOSTS["jetson"].clocked(1e9, 3), HOSTS["jetson"]
    assert (h.pace, h.flops, h.cores, h.hz) == (2 * usual.pace, usual.flops / 4, 3, 1e9)
    assert "3 cores" in h.title
