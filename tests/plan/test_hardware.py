import tomllib
from importlib import resources
from pathlib import Path

import pytest

from takt.plan.errors import PlanInputError
from takt.plan.hardware import known_accelerators, parse_cluster, read_accelerator

SHIPPED = Path(str(resources.files("takt.plan"))) / "data" / "hardware"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAKT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_all_devices_of_the_plan_are_known() -> None:
    assert {"A100-80G", "H100", "H200", "B200", "L40S", "MI300X"} == set(known_accelerators())


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_every_table_of_figures_has_its_source(path: Path) -> None:
    data = tomllib.loads(path.read_text())
    tables = [data[name] for name in ("memory", "compute", "node", "launch")]
    for table in [*tables, *data["gemm"], *data["all_reduce"]]:
        assert len(table["source"]) > 10


def test_figures_are_read_in_their_units() -> None:
    device = known_accelerators()["A100-80G"]
    assert device.bandwidth_bytes_s == 2.039e12
    assert device.flops("bf16") == 312e12
    assert device.flops("fp8") == 312e12  # it has none: weights alone are stored so
    assert device.all_reduces[4].latency_s == pytest.approx(5.3e-6)


def test_larger_products_take_longer_at_every_size() -> None:
    for device in known_accelerators().values():
        for curve in device.gemm_curves.values():
            times = [size / curve.share(size) for size in range(10**6, 10**9, 10**6)]
            assert times == sorted(times)


def test_clusters_are_parsed() -> None:
    assert parse_cluster("16xA100-80G").label == "16xA100-80G"
    assert parse_cluster("8 x h200").num_devices == 8
    assert parse_cluster("A100").accelerator.name == "A100-80G"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("16xA100-80", "nearest: A100-80G"),
        ("H20", "H200"),
        ("0xH200", "0 devices"),
        ("", "is empty"),
        ("this-machine", "has not been measured"),
    ],
)
def test_unknown_hardware_is_refused_with_a_way_out(text: str, said: str) -> None:
    with pytest.raises(PlanInputError, match=said):
        parse_cluster(text)


def test_a_file_of_the_users_adds_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((SHIPPED / "h100.toml").read_text().replace('"H100"', '"H123"', 1))
    assert parse_cluster("2xH123", path).accelerator.name == "H123"


def test_what_was_measured_on_this_machine_is_found(empty_cache: Path) -> None:
    (empty_cache / "hardware").mkdir(parents=True)
    text = (SHIPPED / "h100.toml").read_text().replace('"H100"', '"this-machine"', 1)
    (empty_cache / "hardware" / "this-machine.toml").write_text(text)
    assert parse_cluster("this-machine").accelerator.name == "this-machine"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("bandwidth_gb_s = 3350.0", "bandwidth_gb_s = -1", "memory.bandwidth_gb_s"),
        ("bandwidth_gb_s = 3350.0", "bandwidth_gb_s = nan", "memory.bandwidth_gb_s"),
        ("bf16_tflops = 989.0", "", "compute.bf16_tflops"),
        ("num_units = 132", 'num_units = "x"', "compute.num_units"),
        ("attention_share = 0.8", "attention_share = 1.8", "memory.attention_share"),
        ("[launch]", "[lunch]", "launch"),
        ("[memory]", "[memory", "is not TOML"),
        ("[memory]", "a = " + "[" * 5000 + "\n[memory]", "nested too deeply"),
        ("num_units = 132", "num_units = " + "1" * 5000, "is not TOML"),
        ("num_units = 132", "num_units = " + "1" * 400, "compute.num_units"),
        ("bandwidth_gb_s = 3350.0", "bandwidth_gb_s = " + "1" * 400, "memory.bandwidth_gb_s"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_field(
    tmp_path: Path, old: str, new: str, field: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((SHIPPED / "h100.toml").read_text().replace(old, new, 1))
    with pytest.raises(PlanInputError, match=r"mine\.toml") as caught:
        read_accelerator(path)
    assert field in str(caught.value)
