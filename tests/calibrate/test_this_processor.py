"""What a processor says of itself, and what is assumed where it says nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxperf.calibrate.this_processor import Described, described, device, elsewhere, this_cpu
from onnxperf.measure.environment import processor
from onnxperf.measure.record import Place

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz
cpu MHz\t\t: 2600.123
flags\t\t: fpu vme sse2 avx fma avx2 avx512f avx512dq
"""
AMD = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 7543 32-Core Processor
cpu MHz\t\t: 2794.748
flags\t\t: fpu vme sse2 avx fma avx2
processor\t: 1
cpu MHz\t\t: 3600.000
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32
CPU implementer\t: 0x41
"""


@pytest.mark.parametrize(
    "texts, machine, expected",
    [
        ({"cpuinfo": INTEL, "l2": "1280K\n", "l3": "48M"}, "x86_64", ("AVX-512", 64, 2.0e9, 1280 * 2**10, 48 * 2**20)),
        ({"cpuinfo": INTEL, "max_freq": "3200000\n"}, "x86_64", ("AVX-512", 64, 3.2e9, None, None)),
        ({"cpuinfo": AMD, "l2": "512K"}, "x86_64", ("AVX2", 32, 3.6e9, 512 * 2**10, None)),
        ({"cpuinfo": ARM, "l2": "1024K"}, "aarch64", ("NEON", 16, None, 2**20, None)),
        ({}, "arm64", ("NEON", 16, None, None, None)),
        ({}, "AMD64", ("no known vector unit", 8, None, None, None)),
        ({"cpuinfo": "", "max_freq": "?", "l2": "many"}, "", ("no known vector unit", 8, None, None, None)),
    ],
)
def test_descriptions(texts: dict[str, str], machine: str, expected: tuple[object, ...]) -> None:
    assert described(texts, machine) == Described(*expected)


@given(st.dictionaries(st.sampled_from(["cpuinfo", "max_freq", "l2", "l3"]), st.text(max_size=200)), st.text())
def test_no_text_is_too_odd(texts: dict[str, str], machine: str) -> None:
    found = device("name", machine, described(texts, machine), 0)
    assert found.dense_flops["fp32"] > 0 and found.l2_bytes > 0 and found.capacity_bytes > 0


def test_what_is_assumed_says_so() -> None:
    told = device("it", "x86_64", described({"cpuinfo": INTEL, "l2": "1M"}, "x86_64"), 2**34)
    assert told.dense_flops["fp32"] == 64 * 2.0e9 and told.lanes == 32 and told.sms == 1
    assert math.isinf(told.tdp_W)
    assert set(told.unverified) == {"sms", "lanes", "memory_kind", "bandwidth_Bps", "fp32", "tensor_int8"}
    silent = device("it", "x86_64", described({}, "x86_64"), 0)
    assert set(silent.unverified) >= {"boost_hz", "l2_bytes", "capacity_bytes"}


@pytest.mark.parametrize(
    "flags, machine, times",
    [
        ("flags : avx2 fma", "x86_64", 2), ("flags : avx2 fma avx_vnni", "x86_64", 4),
        ("flags : avx512f avx512_vnni", "x86_64", 4), ("flags : avx512f avx512_vnni amx_int8", "x86_64", 32),
        ("Features : asimd", "aarch64", 2), ("Features : asimd asimddp", "aarch64", 4),
        ("Features : asimd asimddp i8mm", "aarch64", 8),
    ],
)  # fmt: skip
def test_integers_have_a_rate_of_their_own(flags: str, machine: str, times: int) -> None:
    found = device("it", machine, described({"cpuinfo": flags}, machine), 2**34)
    assert found.dense_flops["tensor_int8"] == times * found.dense_flops["fp32"]


def test_this_processor_is_named_as_measurements_name_it() -> None:
    assert this_cpu().name == processor().name
    assert this_cpu().kind == "cpu"


def test_a_processor_elsewhere_is_known_by_its_name_alone() -> None:
    found = elsewhere(Place("cpu", "", "A Processor @ 2.20GHz", 2**35, 1))
    assert (found.name, found.boost_hz, found.capacity_bytes) == ("A Processor @ 2.20GHz", 2.2e9, 2**35)
    assert {"sms", "lanes", "fp32", "l2_bytes"} <= set(found.unverified)
