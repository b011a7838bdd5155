"""`takt topo` as a user meets it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from machines import DATA, SWITCHED, UNEVEN, machine

from takt.cli.main import main
from takt.parallel.topology.pipelines import place_ranks
from takt.parallel.topology.svg import topology_svg


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["topo", *arguments])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_a_file_is_shown_with_its_groups(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--from", str(DATA / "dgx1_v100.txt"))
    assert code == 0
    assert "NV2 50" in out and "SYS 10" in out
    assert "0,1,2,3 | 4,5,6,7" in out
    assert "25 GB/s" in out


def test_json_and_svg(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawing = tmp_path / "topo.svg"
    code, out, _ = run(
        capsys,
        *("--from", str(DATA / "l40s_two_sockets.txt"), "-tp", "2", "-pp", "2", "--json"),
        *("--svg", str(drawing)),
    )
    assert code == 0
    (placement,) = json.loads(out)["placements"]
    assert placement["data_parallel_size"] == 2 and placement["group_gb_s"] == 32
    assert placement["devices"] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert placement["is_exact"] is True
    assert ElementTree.parse(drawing).getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", [*SWITCHED, *UNEVEN])
def test_every_machine_can_be_drawn(name: str) -> None:
    topology = machine(name)
    root = ElementTree.fromstring(topology_svg(topology, place_ranks(topology.bandwidths(), 2, 2)))
    names = {element.text for element in root.iter("{http://www.w3.org/2000/svg}title")}
    assert names == {vertex.name for vertex in topology.vertices}


def test_this_machine_has_a_topology(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--cpus", "-tp", "1", "--json")
    assert code == 0
    assert json.loads(out)["topology"]["devices"][0]["name"] == "L3-0"


def test_no_column_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--cpus", "-tp", "1")
    heading = next(line for line in out.splitlines() if "NUMA" in line)
    assert [cell.strip() for cell in heading.strip("┃").split("┃")][-1] == "CPUs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "/nowhere/x"), "cannot be read"),
        (("--from", str(DATA / "dgx_a100.txt"), "-tp", "3"), "sizes that do: 1, 2, 4, 8"),
        (("--from", str(DATA / "dgx_a100.txt"), "-tp", "2", "-pp", "3"), "multiple of 6"),
        (("--from", str(DATA / "dgx_a100.txt"), "-tp", "2", "-pp", "0"), "multiple of 2"),
        (("--from", "x", "--cpus"), "two sources"),
        (("--cpus", "--svg", "/nowhere/x.svg"), "no folder"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == ""
    assert message in err and err.count("\n") == 1


def test_cpus_of_ranks_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--ranks", "--num-threads", "1", "--json")
    (rank,) = json.loads(out)["ranks"]
    assert code == 0 and len(rank["cpus"]) == 1 and rank["l3"]
    code, out, _ = run(capsys, "--ranks", "--num-threads", "1")
    assert code == 0 and "CPUs of ranks" in out and str(rank["cpus"][0]) in out
    arguments = ("--ranks", "-tp", "512", "-pp", "64")
    assert "not pinned: 32768 ranks with 1 threads each" in run(capsys, *arguments)[1]
    assert json.loads(run(capsys, *arguments, "--json")[1])["ranks"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "--cpus"), "without --from, --cpus, --svg"),
        (("--ranks", "-tp", "0"), "--tensor-parallel-size must be at least 1"),
        (("--ranks", "--num-threads", "0"), "--num-threads must be at least 1"),
        (("--cpus", "--num-threads", "2"), "--num-threads goes with --ranks"),
        (("--measure", "--ranks"), "takes --json alone"),
    ],
)
def test_mistakes_about_ranks(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_measure_takes_no_topology(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--measure", "--cpus")
    assert code == 2 and "takes --json alone" in err
