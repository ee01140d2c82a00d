"""A user's own card, and every way to get one wrong."""

import os
import re

import pytest

from gpu_specs import Corrections, PowerMode, SpecError, UnknownDevice, load, resolve
from tests.device_files import CARD

SOURCE = '[[source]]\nstatus = "seen"\ntext = "a datasheet"\nfacts = ["sms", "boost_MHz", "tensor_fp16"]\n'


@pytest.fixture
def card(tmp_path):
    """Writes a card file and gives its path."""

    def write(text, name="my-card.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_card_without_sources_is_unverified(card):
    mine = load(str(card(CARD)))
    assert (mine.id, mine.name, mine.kind) == ("my-card", "My Card", "gpu")
    assert (mine.sms, mine.boost_hz, mine.bandwidth_Bps) == (58, 2.04e9, 3e11)
    assert mine.capacity_bytes == 24 * 2**30
    assert mine.pcie_Bps == pytest.approx(load("l4").pcie_Bps / 2)
    assert dict(mine.dense_flops) == {"fp32": 30.3e12, "tensor_fp16": 121e12}
    assert {"sms", "boost_hz", "fp32", "tensor_fp16", "pcie_Bps"} <= set(mine.unverified)
    assert mine.source_of("sms").status == "unverified"


def test_what_a_card_leaves_out_is_a_default(card):
    mine = load(card(CARD))
    assert (mine.tensor_hz, mine.l2_partitions, mine.nvlink_Bps) == (mine.boost_hz, 1, 0.0)
    assert (mine.memory_bus_bits, mine.memory_rate_bps) == (None, None)
    assert mine.corrections == Corrections(1.0, 1.0, 1.0)
    assert mine.nvml_names == mine.aliases == mine.short_names == mine.notes == ()
    assert mine.source_of("tensor_hz") is None


def test_a_card_may_have_another_host_link_than_pcie_and_no_base_clock(card):
    mine = load(card(swap("pcie = { gen = 4, lanes = 8 }", "host_link_GBps = 450").replace("base_MHz = 795\n", "")))
    assert (mine.pcie_Bps, mine.base_hz) == (450e9, None)
    assert mine.source_of("pcie_Bps").status == "unverified"
    assert mine.source_of("base_hz") is None


@pytest.mark.parametrize("table", ["corrections", "effects"])  # the second is its older name
def test_a_card_with_sources_and_corrections(card, table):
    mine = load(card(CARD + SOURCE + f'[{table}]\ncompute = 1.1\nsource = "my bench"\n'))
    assert mine.source_of("boost_hz").text == mine.source_of("tensor_fp16").text == "a datasheet"
    assert "sms" not in mine.unverified and "lanes" in mine.unverified
    assert mine.corrections == Corrections(compute=1.1, source="my bench")


MODE = """[[power_mode]]
name = "15W"
sms = 4
boost_MHz = 612
memory_MHz = 2133
cpu_cores = 4
cpu_MHz = 1651.2
tdp_W = 15
"""


def test_power_modes_are_read_in_si_units(card):
    mine = load(card(CARD + MODE + MODE.replace("15W", "MODE_30W")))
    assert mine.power_modes[0] == PowerMode("15W", 4, 612e6, 4.266e9, 4, 1651.2e6, 15)
    assert [mode.name for mode in mine.power_modes] == ["15W", "MODE_30W"]
    assert str(mine.power_modes[0]) == "15W: 4 SMs at 612 MHz, memory at 2133 MHz, 4 cores at 1651 MHz, 15 W"
    assert "power_modes" in mine.unverified and mine.source_of("power_modes").status == "unverified"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODE.replace("sms = 4\n", ""), "sms in [[power_mode]] 1 is missing; it is needed"),
        (MODE.replace("sms", "tpcs"), "unknown key 'tpcs' in [[power_mode]] 1"),
        (MODE + MODE.replace("612", "0"), "boost_MHz in [[power_mode]] 2 is 0; it needs a number"),
        (MODE.replace('"15W"', '"\\u001b[31m"'), "name in [[power_mode]] 1 is"),
        ("[power_mode]\nsms = 4\n", "power_mode needs to be written as [[power_mode]] blocks, at most 20"),
        (21 * MODE, "at most 20"),
    ],
)
def test_a_broken_power_mode_is_told_with_its_number(card, text, message):
    with pytest.raises(SpecError) as caught:
        load(card(CARD + text))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_path_is_a_path_and_stands_for_itself(card, monkeypatch):
    path = card(CARD)
    assert resolve(str(path)) == (str(path), None)
    monkeypatch.chdir(path.parent)
    assert load("my-card.toml") == load("./my-card.toml") == load(path)
    with pytest.raises(UnknownDevice):
        load("my-card")
    with pytest.raises(SpecError, match=r"'l4\.toml': no such file"):
        load("l4.toml")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(card):
    assert load(card(b"\xef\xbb\xbf" + CARD.replace("\n", "\r\n").encode())).sms == 58


def swap(old, new):
    assert old in CARD
    return CARD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe", "is not UTF-8 text (byte 0); TOML is always UTF-8"),
        ("name = \n", "is not valid TOML: Invalid value (at line 1, column 8)"),
        ("a = 1\na = 2\n", "is not valid TOML: Cannot overwrite a value (at line 2"),
        ("a = " + "[" * 5000, "is nested too deeply"),
        ("a = " + "9" * 5000, "is not valid TOML"),
        ("#" * 1_000_001, "has 1,000,001 bytes; the limit is 1,000,000"),
        ("", "name is missing; it is needed"),
        (swap('name = "My Card"', ""), "name is missing; it is needed"),
        (swap('"My Card"', "7"), "name is 7; it needs a line of printable text"),
        (swap('"My Card"', '"  "'), "name is '  '; it needs a line of printable text"),
        (swap('"My Card"', r'"\u001b[2J"'), r"name is '\x1b[2J'; it needs a line of printable text"),
        (swap('"8.9"', "8.9"), 'capability is 8.9; it needs a compute capability in quotes, such as "8.0"'),
        (swap('"8.9"', '"sm_89"'), "capability is 'sm_89'; it needs a compute capability in quotes"),
        (swap("sms = 58", ""), "sms in [processor] is missing; it is needed"),
        (swap("sms = 58", "sms = 58.5"), "sms in [processor] is 58.5; it needs a whole number above 0"),
        (
            swap("sms = 58", "sms = true"),
            "sms in [processor] is True; it needs a number from 1e-06 to 1,000,000,000,000",
        ),
        (swap("sms = 58", 'sms = "58"'), "sms in [processor] is '58'; it needs a number"),
        (swap("sms = 58", "sms = 0"), "sms in [processor] is 0; it needs a number"),
        (swap("sms = 58", "sms = -58"), "sms in [processor] is -58; it needs a number"),
        (swap("sms = 58", "sms = " + "9" * 4000), "sms in [processor] is a huge number; it needs"),
        (swap("sms = 58", "sms = 0x" + "f" * 5000), "sms in [processor] is a huge number; it needs"),
        (swap("sms = 58", "sms = { a = 1 }"), "sms in [processor] is a table; it needs a number"),
        (swap("sms = 58", "sms = [58]"), "sms in [processor] is a list; it needs a number"),
        (swap("sms = 58", "sms = 1979-05-27"), "sms in [processor] is datetime.date(1979, 5, 27); it needs"),
        (swap("= 2040", "= nan"), "boost_MHz in [processor] is nan; it needs a number"),
        (swap("= 300", "= inf"), "bandwidth_GBps in [memory] is inf; it needs a number"),
        (swap("= 300", "= -0.0"), "bandwidth_GBps in [memory] is -0.0; it needs a number"),
        (swap("= 300", "= 1e300"), "bandwidth_GBps in [memory] is 1e+300; it needs a number"),
        (swap("= 300", "= 1e-300"), "bandwidth_GBps in [memory] is 1e-300; it needs a number"),
        (swap("bandwidth_GBps", "bandwidth_gbps"), "unknown key 'bandwidth_gbps' in [memory]; did you mean"),
        (swap("[processor]", "[procesor]"), "unknown key 'procesor'; did you mean 'processor'?"),
        (swap("fp32 = 30.3", ""), "fp32 in [dense_TFLOPS] is missing; it is needed"),
        (swap("tensor_fp16", "tensor_f16"), "unknown key 'tensor_f16' in [dense_TFLOPS]; did you mean"),
        (swap("tensor_fp16", "warp_drive"), "unknown key 'warp_drive' in [dense_TFLOPS]"),
        (swap("[dense_TFLOPS]\nfp32 = 30.3\ntensor_fp16 = 121\n", ""), "fp32 in [dense_TFLOPS] is missing"),
        (swap("[memory]", "[[memory]]"), "[memory] needs to be a table"),
        (swap("gen = 4", "gen = 9"), "pcie in [power_and_links] is a table; it needs { gen"),
        (swap("gen = 4", "gen = [4]"), "pcie in [power_and_links] is a table; it needs { gen"),
        (swap("lanes = 8 }", "lanes = 0 }"), "pcie in [power_and_links] is a table; it needs"),
        (swap("{ gen = 4, lanes = 8 }", "28.8"), "pcie in [power_and_links] is 28.8; it needs { gen = 4"),
        (swap("pcie = { gen = 4, lanes = 8 }", ""), "pcie in [power_and_links] is missing; it or host_link_GBps is"),
        (CARD + "host_link_GBps = 450\n", "pcie in [power_and_links] contradicts host_link_GBps; give only one is"),
        (CARD + "host_link_GBps = 0\n", "host_link_GBps in [power_and_links] is 0; it needs a number"),
        ('kind = "tpu"' + CARD, "kind is 'tpu'; it needs one of gpu, cpu"),
        ("kind = [1]" + CARD, "kind is a list; it needs one of gpu, cpu"),
        ('aliases = "x"' + CARD, "aliases is 'x'; it needs a list of texts"),
        ("notes = [1]" + CARD, "notes is a list; it needs a line of printable text"),
        (CARD + "[corrections]\ncompute = 0\n", "compute in [corrections] is 0; it needs a number"),
        (
            CARD + "[corrections]\nhalf_width = 900\n",
            "half_width in [corrections] is 900; it needs a number from 0",
        ),
        (CARD + "[corrections]\nspeed = 2\n", "unknown key 'speed' in [corrections]"),
        ("corrections = 2" + CARD, "[corrections] needs to be a table"),
        ("source = 2" + CARD, "source needs to be written as [[source]] blocks"),
        ("source = [2]" + CARD, "[[source]] 1 needs to be a table"),
        (CARD + SOURCE.replace("seen", "sure"), "status in [[source]] 1 is 'sure'; it needs one of seen"),
        (CARD + SOURCE.replace("text", "txt"), "unknown key 'txt' in [[source]] 1; did you mean 'text'?"),
        (
            CARD + SOURCE.replace("sms", "smss"),
            "'smss' in [[source]] 1 is not a fact of this file; did you mean",
        ),
        (CARD + SOURCE.replace("sms", "fp64"), "'fp64' in [[source]] 1 is not a fact of this file"),
        (CARD + SOURCE + SOURCE, "'sms' in [[source]] 2 already has a source; each fact needs just one"),
    ],
)
def test_a_broken_card_file_is_told_in_one_sentence(card, text, message):
    path = card(text)
    with pytest.raises(SpecError, match=re.escape(f"card file {str(path)!r}: {message}")) as caught:
        load(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(path)) + 250


def test_a_path_that_is_no_readable_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path, message in [
        (tmp_path / "none.toml", "no such file; the path of a TOML file is needed"),
        (tmp_path, "is not a regular file; a TOML file is needed"),
        (tmp_path / "pipe.toml", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
        (f"{tmp_path}/{'x' * 5000}.toml", "cannot be read (File name too long)"),
        ("a\0b.toml", "is not valid TOML"),
    ]:
        with pytest.raises(SpecError, match=re.escape(message)):
            load(path)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a" + ".a" * 20_000 + " = 1", "has 20,000 dots in line 1; a line has at most 100: use several lines"),
        ("[a" + ".a" * 101 + "]", "has 101 dots in line 1"),
        (f'name = "{"n" * 4097}"', "name is 'nnnn"),
        (f'name = "{"n" * 4097}"', "it needs a line of printable text, of at most 4,096 characters"),
    ],
)
def test_what_would_take_long_or_fill_a_screen_is_refused_briefly(card, line, says, monkeypatch):
    if ".a" in line:  # tomllib takes the square of the parts in steps
        monkeypatch.setattr("gpu_specs.toml_file.tomllib.loads", lambda _: pytest.fail("it is parsed"))
    with pytest.raises(SpecError, match=re.escape(says)) as refused:
        load(card(line + "\n" + CARD.replace('name = "My Card"', "")))
    assert len(str(refused.value)) < 500


def test_a_long_key_is_named_briefly(card):
    with pytest.raises(SpecError, match=r"unknown key 'k+\.\.\.") as refused:
        load(card(f"{'k' * 5000} = 1\n{CARD}"))
    with pytest.raises(SpecError, match="is not valid TOML") as twice:
        load(card(f"[{'k' * 5000}]\n" * 2))
    assert len(str(refused.value)) < 500 > len(str(twice.value))
