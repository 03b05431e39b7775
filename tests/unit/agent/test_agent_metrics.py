# SPDX-License-Identifier: GPL-3.0-or-later
"""The service's own metrics: what Prometheus' own tool says of them, names that hurt, what a scrape costs."""

import collections
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_rig import REPO, RESOURCE, until
from backend_rig import RockchipWorld
from prometheus_client.parser import text_string_to_metric_families

PLACE = REPO / ".build/prometheus"
# Field case G20; Chinese in UTF-8, the same in GBK as Python reads a file name of it, control characters.
HOSTILE = (
    'Atlas "300I\\Duo"\n', "昇腾 310P", "昇腾".encode("gbk").decode("utf-8", "surrogateescape"), "a\0b\r\x1b[31m", "{}=,#", " ", "\\n",
    '\\"',
)


@pytest.fixture(scope="session")
def promtool():
    """check(text): promtool says nothing against it."""
    found = shutil.which("promtool", path=os.pathsep.join([os.environ.get("PATH", ""), str(PLACE / "usr/bin")]))
    if found is None and (PLACE / "unavailable").exists():
        pytest.skip("tests/prepare.sh could not fetch promtool, and said so")
    assert found, "promtool is missing: tests/prepare.sh all"

    def check(text):
        done = subprocess.run([found, "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")

    return check


@pytest.fixture
def metrics(package):
    import npu_agent.metrics

    return npu_agent.metrics


def values(text):
    """{(name, ((label, value), …)): number}"""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def make_service(package, *reasons, resource=RESOURCE):
    from npu_agent.chip import Chip
    from npu_agent.durations import Durations

    chip = Chip("Ascend910-0", 0, "a2", "0000:c1:00.0", 0, 0, "/dev/davinci0", None, True, "", 1, tuple(reasons))
    board = SimpleNamespace(chips={chip.id: chip}, count=lambda: (1, 1))
    session = SimpleNamespace(ready=True, stream_open=True, board=board)
    audit = SimpleNamespace(durations=Durations(), counts=collections.Counter(), pending=[])
    return SimpleNamespace(
        began=1.5, configured=2.5, faults=[], folder=SimpleNamespace(trouble=None), looked_at=1.0, sessions={resource: session},
        audit=audit, holders=SimpleNamespace(up=None), node=SimpleNamespace(boards={resource: board}, seen={}),
        counters=collections.Counter())


@pytest.fixture
def hot(rig):
    """A chip that is hot before the agent asks: it does so with its second look, and then twice a minute."""
    rig.change("chips.3.temperature_c", 99)


def test_promtool_has_nothing_against_a_real_scrape(hot, pair, promtool):
    rig, agent = pair
    assert rig.ask("allocate", count=2, resource=RESOURCE, pod="a")["phase"] == "Running"
    (rig.dev / "davinci7").unlink()
    until(lambda: "npu_agent_chip_degraded{" in agent.get("/metrics")[1] and 'npu_agent_audit_lines_total 1.0' in agent.get("/metrics")[1])
    status, text = agent.get("/metrics")
    assert status == 200
    promtool(text)
    found = values(text)
    assert found["npu_agent_allocation_duration_seconds_count", ()] == 1
    assert 0 < found["npu_agent_allocation_duration_seconds_sum", ()] < 60
    assert found["npu_agent_pod_resources_up", ()] == 1 and found["npu_agent_audit_lines_without_pod_total", ()] == 0
    assert found["npu_agent_config_last_reload_successful", ()] == 1
    assert found["npu_agent_chip_temperature_celsius", (("chip", "Ascend910-3"),)] == 99
    assert not [name for name, _labels in found if name == "npu_agent_core_load_ratio"]  # the driver of these chips tells none here


def test_promtool_can_say_no(promtool):
    with pytest.raises(AssertionError):
        promtool("# TYPE npu_agent_x counter\nnpu_agent_x 1\n")


def test_names_that_hurt(package, metrics, promtool):
    """Field case G20. What a label has is what was given, but for bytes that are no UTF-8."""
    kind, data = metrics.text(make_service(package, *HOSTILE, resource='a/"b\n'), 3.0, "serving")
    assert kind.startswith("text/plain; version=0.0.4")
    text = data.decode("utf-8")
    promtool(text)
    found = {dict(labels)["reason"] for name, labels in values(text) if name == "npu_agent_chip_degraded"}
    assert found == {reason.encode("utf-8", "replace").decode() for reason in HOSTILE}
    assert values(text)["npu_agent_look_age_seconds", ()] == 2


def test_load_and_temperature_where_they_are_known(package, metrics, promtool):
    service = make_service(package)
    told = {"rk": {"temperature_c": 41.5, "load": [0, 25, 100]}, "idle": {"temperature_c": 0, "load": None}, "other": {}, "none": None}
    service.node.seen = {name: SimpleNamespace(record={"telemetry": one}, gone=False) for name, one in told.items()}
    service.node.seen["gone"] = SimpleNamespace(record={"telemetry": told["rk"]}, gone=True)
    text = metrics.text(service, 3.0, "serving")[1].decode()
    promtool(text)
    found = {(name[len("npu_agent_"):], *dict(labels).values()): value for (name, labels), value in values(text).items()
             if name in ("npu_agent_core_load_ratio", "npu_agent_chip_temperature_celsius")}
    assert found == {
        ("chip_temperature_celsius", "rk"): 41.5, ("chip_temperature_celsius", "idle"): 0,
        ("core_load_ratio", "rk", "0"): 0, ("core_load_ratio", "rk", "1"): 0.25, ("core_load_ratio", "rk", "2"): 1,
    }


def test_a_rockchip_board_has_them(package, tmp_path_factory, promtool):
    made = RockchipWorld(tmp_path_factory.mktemp("node"), package, None, load=(0, 21, 5))
    try:
        zone = made.rig.sys / "class/thermal/thermal_zone5"
        zone.mkdir(parents=True)
        (zone / "type").write_text("npu-thermal\n")
        (zone / "temp").write_text("48230\n")
        made.rig.kubelet()
        agent = made.rig.agent()
        agent.await_state("serving")
        text = agent.get("/metrics")[1]
        promtool(text)
        found = values(text)
        chip = "chip", made.ids[0]
        assert found["npu_agent_chip_temperature_celsius", (chip,)] == 48.23
        assert [found["npu_agent_core_load_ratio", (chip, ("core", core))] for core in "012"] == [0, 0.21, 0.05]
    finally:
        made.close()


def test_series_do_not_grow_with_pods(pair):
    """Field case G15: a label has no name that comes and goes."""
    def series():
        # The driver tells temperatures with a later look; there is one for each chip.
        return {one for one in values(agent.get("/metrics")[1]) if one[0] != "npu_agent_chip_temperature_celsius"}

    rig, agent = pair
    before = series() | {("npu_agent_pod_resources_up", ())}
    for number in range(8):
        rig.ask("allocate", count=1, resource=RESOURCE, pod=f"unusual-{number}")
    until(lambda: values(agent.get("/metrics")[1])["npu_agent_audit_lines_total", ()] == 8)
    assert series() == before and "unusual" not in agent.get("/metrics")[1]


def test_a_refused_configuration_shows(pair):
    rig, agent = pair
    before = values(agent.get("/metrics")[1])
    rig.config.write_text("no_such: 1\n")
    agent.process.send_signal(signal.SIGHUP)
    until(lambda: values(agent.get("/metrics")[1])["npu_agent_config_last_reload_successful", ()] == 0)
    name = "npu_agent_config_last_reload_success_timestamp_seconds", ()
    assert values(agent.get("/metrics")[1])[name] == before[name]
    rig.config.write_text("# good\n")
    agent.process.send_signal(signal.SIGHUP)
    until(lambda: values(agent.get("/metrics")[1])["npu_agent_config_last_reload_successful", ()] == 1)
    assert values(agent.get("/metrics")[1])[name] > before[name] > 1e9


@pytest.mark.parametrize(("seconds", "counts"), [
    ((), [0] * 11), ((0.0005,), [1] * 11), ((0.00051,), [0] + [1] * 10), ((0.3, 2.0, 0.002), [0, 0] + [1] * 7 + [2, 3]),
])
def test_durations(package, seconds, counts):
    from npu_agent.durations import Durations

    durations = Durations()
    for one in seconds:
        durations.take(one)
    assert [count for _bound, count in durations.buckets()] == counts
    assert durations.buckets()[-1][0] == "+Inf" and durations.total == sum(seconds)


def test_the_library_comes_without_its_servers(package):
    """And leaves no trace: whoever needs such a module afterwards gets the real one."""
    code = """
import sys
sys.modules["ssl"] = None
from npu_agent import metrics
exposition, core = metrics.library()
assert core.CollectorRegistry and exposition.generate_latest(core.CollectorRegistry()) == b""
assert sys.modules["ssl"] is None
assert not [name for name in metrics.SERVERS if sys.modules.get(name) is not None], sys.modules
del sys.modules["ssl"]
import http.server, ssl, urllib.request
assert ssl.SSLContext and issubclass(http.server.BaseHTTPRequestHandler, object) and urllib.request.urlopen
assert metrics.library()[0] is exposition
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(Path(package))}, timeout=60)


def test_a_fault_of_a_page_is_told_and_leaves_the_others(package):
    from npu_agent import status

    said = []
    service = SimpleNamespace(log=lambda event, level="info", **fields: said.append((event, fields)), node=SimpleNamespace(silent=""))
    endpoint = status.Endpoint(service)
    for _unused in range(2):
        assert endpoint.answered("/readyz")[0] == 500
    assert [event for event, _fields in said] == ["a fault of npu-agent"] and "/readyz: AttributeError" in said[0][1]["cause"]
    assert endpoint.answered("/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
