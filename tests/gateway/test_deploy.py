"""What is shipped for operators agrees with what the gateway exports."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from takt.gateway.metrics import GatewayMetrics

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = json.loads((DEPLOY / "grafana" / "gateway.json").read_text())

_METRIC = re.compile(r"\b(?:takt_gateway|idempotent)_\w+")


def promtool(*arguments: str) -> None:
    tool = shutil.which("promtool")
    assert tool is not None, "promtool is not installed: scripts/test-services installs it"
    result = subprocess.run([tool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def exported_names() -> set[str]:
    metrics = GatewayMetrics(CollectorRegistry())
    metrics.watch_upstreams([])
    metrics.watch_service("default")
    names = set()
    for family in metrics.registry.collect():
        endings = {
            "counter": ["_total"],
            "histogram": ["_bucket", "_sum", "_count"],
        }.get(family.type, [""])
        names |= {family.name + ending for ending in endings}
    return names


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_rules_are_valid_and_alert_as_their_tests_say() -> None:
    promtool("check", "rules", "gateway.rules.yml")
    promtool("test", "rules", "gateway.rules.test.yml")
    promtool("check", "config", "prometheus.yml")


def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:query:{number}", "expr": query}
        for number, query in enumerate(dashboard_queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_rules_and_dashboard_ask_only_for_metrics_that_exist() -> None:
    known = exported_names()
    texts = [*dashboard_queries(), (PROMETHEUS / "gateway.rules.yml").read_text()]
    asked = {name for text in texts for name in _METRIC.findall(text)}
    asked.discard("idempotent_request_duplicates")
    assert asked
    assert asked <= known, asked - known


def test_duplicates_alert_is_at_eight_percent_over_fifteen_minutes() -> None:
    rules = yaml.safe_load((PROMETHEUS / "gateway.rules.yml").read_text())["groups"][0]["rules"]
    ratio = next(rule for rule in rules if "record" in rule)
    alert = next(rule for rule in rules if rule.get("alert") == "GatewayManyDuplicates")
    assert "[15m]" in ratio["expr"]
    assert alert["expr"] == f"{ratio['record']} > 0.08"


def test_compose_file_keeps_a_store_that_the_gateway_accepts() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    redis = services["redis"]["command"]
    assert redis[redis.index("--appendonly") + 1] == "yes"
    assert redis[redis.index("--appendfsync") + 1] == "always"
    assert (DEPLOY.parent / services["gateway"]["build"]["dockerfile"]).exists()


def test_unit_stops_later_than_the_gateway_drains() -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "takt-gateway.service")
    from takt.gateway.options import GatewayOptions

    assert float(unit["Service"]["TimeoutStopSec"]) > GatewayOptions().drain_timeout_seconds
    assert "takt gateway" in unit["Service"]["ExecStart"]
