# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's service on a node: against folders and a runner that answers as systemd does."""

import json
import os
import time

import jinja2
import pytest
from agent_rig import REPO
from service_rig import Systemd, present

from ansible_collections.npu.fleet.plugins.filter.recovery import agent_due
from ansible_collections.npu.fleet.plugins.module_utils import _agent, _agent_service
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_settings import agent_settings


def test_first_run_then_nothing(node):
    systemd = Systemd(node)
    result = present(node, systemd)
    assert result["actions"] == [f"write {_agent.CONFIG}", f"write {_agent.UNIT}", "enable", "start"]
    assert systemd.verbs() == ["daemon-reload", "enable", "start"] and result["state"] == "serving"
    assert (node / "etc/npu-agent/config.yaml").read_text() == "poll_seconds: 1\n"
    assert os.stat(node / "etc/systemd/system/npu-agent.service").st_mode & 0o777 == 0o644
    systemd.calls.clear()
    result = present(node, systemd)
    assert not result["changed"] and systemd.verbs() == [] and result["diff"] == []
    assert result["after"]["started_after_files"] is True


def test_another_configuration_restarts(node):
    systemd = Systemd(node)
    present(node, systemd)
    systemd.calls.clear()
    result = present(node, systemd, config="poll_seconds: 2\n")
    assert result["actions"] == [f"write {_agent.CONFIG}", "restart"] and systemd.verbs() == ["daemon-reload", "restart"]
    assert result["diff"][0]["before"] == "poll_seconds: 1\n" and result["diff"][0]["after"] == "poll_seconds: 2\n"


@pytest.mark.parametrize("touched", ["etc/npu-agent/config.yaml", "etc/systemd/system/npu-agent.service", "opt/npu-agent/current"])
def test_a_run_that_was_cut_before_its_restart_is_finished(node, touched):
    """The files are right already, the process is older than they are."""
    systemd = Systemd(node)
    present(node, systemd)
    time.sleep(0.02)
    os.utime(node / touched)
    systemd.calls.clear()
    result = present(node, systemd)
    assert result["actions"] == ["restart"] and result["reasons"] == ["the service was started before its files changed"]


@pytest.mark.parametrize("touched", ["etc/npu-agent/config.yaml", "etc/systemd/system/npu-agent.service", "opt/npu-agent/current"])
def test_files_of_the_future_cost_one_restart(node, touched):
    """The clock was set back: without mending the times each run would restart the agent."""
    (node / "opt/npu-agent/current").rename(node / "opt/npu-agent/1")
    (node / "opt/npu-agent/current").symlink_to("1")
    systemd = Systemd(node)
    present(node, systemd)
    time.sleep(0.02)
    later, old = time.time() + 3600, os.stat(node / "opt/npu-agent/1").st_mtime
    os.utime(node / touched, (later, later), follow_symlinks=False)
    systemd.calls.clear()
    assert present(node, systemd, check=True)["changed"] and os.lstat(node / touched).st_mtime == pytest.approx(later)
    result = present(node, systemd)
    assert result["actions"] == ["restart"] and systemd.verbs() == ["daemon-reload", "restart"]
    assert result["after"]["started_after_files"] is True and os.lstat(node / touched).st_mtime <= time.time()
    assert os.stat(node / "opt/npu-agent/1").st_mtime == old  # of the link, not of the folder
    assert present(node, systemd)["changed"] is False


def test_start_with_files_of_the_future(node):
    systemd = Systemd(node)
    present(node, systemd)
    later = time.time() + 3600
    os.utime(node / "etc/npu-agent/config.yaml", (later, later))
    systemd.active = False
    assert present(node, systemd)["actions"] == ["start"]
    assert present(node, systemd)["changed"] is False


def test_refused_configuration_changes_nothing(node):
    systemd = Systemd(node)
    with pytest.raises(FleetError) as error:
        present(node, systemd, config="bad: 1\n")
    assert error.value.code == "config_refused" and f"{_agent.CONFIG} line 1" in str(error.value)
    assert not (node / "etc").exists() and systemd.verbs() == []


def test_service_in_check_mode(node):
    systemd = Systemd(node)
    result = present(node, systemd, check=True)
    assert result["changed"] and not (node / "etc").exists() and systemd.verbs() == []
    assert [part["after"] for part in result["diff"]] == ["poll_seconds: 1\n", "[Service]\n"]
    (node / "opt/npu-agent/current/bin/npu-agent").unlink()
    assert present(node, systemd, check=True)["changed"]  # the files would come in the same run
    with pytest.raises(FleetError, match="is not on this node"):
        present(node, systemd)


def test_a_service_that_does_not_start_shows_its_words(node):
    systemd = Systemd(node)
    systemd.fail = "start"
    with pytest.raises(FleetError) as error:
        present(node, systemd)
    assert error.value.observed == "last words" and "Job failed" in str(error.value)


def test_waiting_for_readiness():
    answers = [None, {"state": "starting"}, {"state": "waiting_for_kubelet"}]
    found = _agent_service.wait_settled("x", 5, None, ask=lambda _url: answers.pop(0), sleep=lambda _seconds: None)
    assert found["state"] == "waiting_for_kubelet"


def test_not_ready_in_time_tells_why():
    clock = iter(range(100))
    with pytest.raises(FleetError) as error:
        _agent_service.wait_settled(
            "x", 3, Systemd("/"), ask=lambda _url: {"state": "driver_unusable", "reasons": ["no driver"]}, clock=lambda: next(clock),
            sleep=lambda _seconds: None,
        )
    assert "driver_unusable" in str(error.value) and "no driver" in str(error.value) and "last words" in error.value.observed


def test_absent(node):
    systemd = Systemd(node)
    present(node, systemd)
    systemd.calls.clear()
    assert _agent_service.absent(str(node), systemd, True)["changed"] and systemd.active
    result = _agent_service.absent(str(node), systemd, False)
    assert result["actions"] == ["stop", "disable", f"remove {_agent.CONFIG}", f"remove {_agent.UNIT}"]
    assert not (node / "etc/npu-agent").exists() and not systemd.active
    assert _agent_service.absent(str(node), systemd, False)["changed"] is False


# --- the CDI folder

CDI = "etc/cdi/npu-fleet-ascend.json"
OURS = '{"kind": "npu.fleet/ascend"}'


@pytest.mark.parametrize(("text", "folder"), [
    ('a: 1\ncdi_folder: "/etc/cdi/"\n', "/etc/cdi"), ("cdi_folder: /run/cdi\n", "/run/cdi"), ("cdi_folder: '/run/cdi'\n", "/run/cdi"),
    ('cdi_folder: ""\n', None), ("cdi_folder:\n", None), ("cdi_folder: 3\n", None), ("# cdi_folder: /x\n", None), ("", None),
])
def test_folder_of_a_configuration(text, folder):
    assert _agent_service.cdi_folder(text) == folder


def test_the_folder_is_there_before_the_service_starts(node):
    systemd = Systemd(node)
    text = 'cdi_folder: "/etc/cdi"\n'
    assert "make /etc/cdi" in present(node, systemd, config=text, check=True)["actions"] and not (node / "etc/cdi").exists()
    old = os.umask(0o077)
    try:
        result = present(node, systemd, config=text)
    finally:
        os.umask(old)
    assert result["actions"] == [f"write {_agent.CONFIG}", f"write {_agent.UNIT}", "make /etc/cdi", "enable", "start"]
    assert os.stat(node / "etc/cdi").st_mode & 0o777 == 0o755
    assert present(node, systemd, config=text)["changed"] is False
    (node / "etc/cdi").rmdir()
    result = present(node, systemd, config=text)
    assert result["actions"] == ["make /etc/cdi", "restart"] and result["reasons"] == ["the service was started without its CDI folder"]


def test_a_file_that_nobody_keeps_any_more_goes(node):
    systemd = Systemd(node)
    present(node, systemd, config='cdi_folder: "/etc/cdi"\n')
    (node / CDI).write_text(OURS)
    result = present(node, systemd, config='cdi_folder: "/run/cdi"\n')
    assert result["actions"] == [f"write {_agent.CONFIG}", "make /run/cdi", "restart", f"remove /{CDI}"] and not (node / CDI).exists()
    (node / "run/cdi/npu-fleet-ascend.json").write_text(OURS)
    (node / "run/cdi/other.json").write_text(OURS)
    (node / CDI).write_text(OURS)  # by hand, with `npu-agent cdi --write`
    present(node, systemd, config="poll_seconds: 1\n")
    assert os.listdir(node / "run/cdi") == ["other.json"] and (node / CDI).exists()


def test_a_file_that_is_kept_stays(node):
    systemd = Systemd(node)
    present(node, systemd, config='cdi_folder: "/etc/cdi"\n')
    (node / CDI).write_text(OURS)
    present(node, systemd, config='cdi_folder: "/etc/cdi"\npoll_seconds: 2\n')
    assert (node / CDI).read_text() == OURS


@pytest.mark.parametrize("content", ['{"kind": "x/y"}', "[]", "", "\xff"])
def test_files_of_others_stay(node, content):
    systemd = Systemd(node)
    present(node, systemd, config='cdi_folder: "/etc/cdi"\n')
    (node / CDI).write_text(content)
    present(node, systemd)
    _agent_service.absent(str(node), systemd, False)
    assert (node / CDI).read_text() == content


def test_absent_takes_the_cdi_file(node):
    systemd = Systemd(node)
    present(node, systemd, config='cdi_folder: "/run/cdi"\n')
    for path in (node / CDI, node / "run/cdi/npu-fleet-ascend.json"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(OURS)
    result = _agent_service.absent(str(node), systemd, True)
    assert result["actions"][2:4] == [f"remove /{CDI}", "remove /run/cdi/npu-fleet-ascend.json"] and (node / CDI).exists()
    assert result["diff"][0]["before"] == OURS
    _agent_service.absent(str(node), systemd, False)
    assert not (node / CDI).exists() and os.listdir(node / "run/cdi") == []
    (node / CDI).write_text(OURS)  # a run that was cut: the configuration has gone already
    assert _agent_service.absent(str(node), systemd, False)["actions"] == [f"remove /{CDI}"]


@pytest.mark.parametrize(("config", "folder"), [("poll_seconds: 1\n", "var/lib/npu-agent"), ('state_dir: "/srv/names"\n', "srv/names")])
def test_absent_takes_the_names_of_chips(node, config, folder):
    systemd = Systemd(node)
    present(node, systemd, config=config)
    (node / folder).mkdir(parents=True)
    for name in ("names.json", "names.json.broken", "other"):
        (node / folder / name).write_text("{}")
    assert f"remove /{folder}/names.json" in _agent_service.absent(str(node), systemd, True)["actions"]
    _agent_service.absent(str(node), systemd, False)
    assert os.listdir(node / folder) == ["other"]
    (node / folder / "other").unlink()
    (node / folder / "names.json").write_text("{}")
    present(node, systemd, config=config)
    _agent_service.absent(str(node), systemd, False)
    assert not (node / folder).exists()


def test_absent_without_a_folder_for_names(node):
    systemd = Systemd(node)
    present(node, systemd, config='state_dir: ""\n')
    (node / "var/lib/npu-agent").mkdir(parents=True)
    (node / "var/lib/npu-agent/names.json").write_text("{}")
    _agent_service.absent(str(node), systemd, False)
    assert (node / "var/lib/npu-agent/names.json").exists()


def test_names_are_the_agents(package):
    from npu_agent import cdi, cdi_file

    assert (_agent_service.CDI_FILE, _agent_service.CDI_KIND, _agent_service.CDI_FOLDER) == (cdi.FILE, cdi.KIND, cdi_file.DEFAULT_FOLDER)


# --- settings from the role's options

ENGINES = [{"name": "docker", "kubelet": False, "cdi": True}, {"name": "containerd", "version": "1.6.20", "kubelet": True, "cdi": None}]


@pytest.mark.parametrize(("config", "engines", "options", "wanted"), [
    ({}, [], (), {}),
    ({}, ENGINES, ("nodes",), {}),
    ({}, [{"name": "containerd", "kubelet": True, "cdi": True}], ("auto",), {}),
    ({"log_level": "debug"}, [], ("auto", "/run/cdi"), {"log_level": "debug", "cdi_folder": "/run/cdi"}),
    ({}, [{"name": "containerd", "kubelet": True, "cdi": True}], ("cdi",), {"allocate_by": "cdi", "cdi_folder": "/etc/cdi"}),
    ({}, [{"name": "containerd", "kubelet": True, "cdi": True}], ("cdi", "/run/cdi"), {"allocate_by": "cdi", "cdi_folder": "/run/cdi"}),
    ({"allocate_by": "nodes"}, [], ("cdi",), {"allocate_by": "nodes", "cdi_folder": "/etc/cdi"}),
])
def test_settings(config, engines, options, wanted):
    before = dict(config)
    assert agent_settings(config, engines, *options) == wanted and config == before


@pytest.mark.parametrize(("config", "engines", "options", "code", "words"), [
    ({}, [], ("CDI",), "invalid_option", "there are auto, nodes, cdi"),
    ({}, [], ("cdi",), "cdi_unknown", "(engines: none)"),
    ({}, [{"name": "docker", "cdi": True}], ("cdi",), "cdi_unknown", "(engines: docker)"),
    ({}, [{"name": "docker", "cdi": True, "kubelet": None}, {"name": "containerd", "kubelet": False, "cdi": True}], ("cdi",), "cdi_unknown",
     "(engines: docker, containerd)"),
    ({}, ENGINES, ("cdi",), "cdi_unsupported", "containerd 1.6.20, is not known to have CDI switched on"),
    ({}, [{"name": "docker", "kubelet": True, "cdi": False}], ("cdi",), "cdi_unsupported", "docker (version unknown), has no CDI"),
    ({"allocate_by": "cdi", "cdi_folder": "/etc/cdi"}, ENGINES, ("auto",), "cdi_unsupported", "npu_device_plugin_allocate_by: nodes"),
])
def test_settings_that_are_refused(config, engines, options, code, words):
    with pytest.raises(FleetError) as error:
        agent_settings(config, engines, *options)
    assert error.value.code == code and words in str(error.value)


# --- texts

def render(name, **variables):
    from ansible.plugins.filter.core import FilterModule

    folder = REPO / "roles/npu_device_plugin/templates"
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), trim_blocks=True, keep_trailing_newline=True)  # noqa: S701  no HTML
    environment.filters.update(FilterModule().filters())
    return environment.get_template(name).render(**variables)


def test_unit_keeps_out_of_the_known_traps(package):
    from npu_agent import config

    text = render("npu-agent.service.j2", npu_device_plugin_memory_max="256M", __npu_device_plugin_settings={})
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert text.startswith("# Written by") and settings["MemoryMax"] == "256M"
    assert settings["ExecStart"] == f"{_agent_service.PROGRAM} serve --config {config.PATH}" and settings["ProtectSystem"] == "full"
    traps = {"PrivateDevices", "ProtectKernelLogs", "BindPaths", "ReadWritePaths", "BindReadOnlyPaths", "PrivateTmp", "DynamicUser", "User",
             "ProtectKernelTunables", "OOMScoreAdjust", "DevicePolicy"}
    assert not traps & set(settings)
    assert "CAP_SYS_ADMIN" not in settings["CapabilityBoundingSet"] and "CAP_SYSLOG" in settings["CapabilityBoundingSet"]
    assert (settings["OOMPolicy"], settings["LimitNOFILE"], settings["TasksMax"]) == ("continue", "65536", "1024")
    assert settings["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_units_folder_is_the_agents(package):
    from npu_agent import config, names_file

    text = render("npu-agent.service.j2", npu_device_plugin_memory_max="256M", __npu_device_plugin_settings={})
    folder = f"/var/lib/{text.split('StateDirectory=')[1].splitlines()[0]}"
    assert folder == config.SETTINGS["state_dir"][0] == _agent_service.STATE_FOLDER
    assert _agent_service.STATE_FILE == names_file.FILE and "StateDirectoryMode=0700" in text
    logs = f"/var/log/{text.split('LogsDirectory=')[1].splitlines()[0]}"
    assert os.path.dirname(config.SETTINGS["audit_file"][0]) == logs and "LogsDirectoryMode=0700" in text


def test_unit_opens_the_cdi_folder_and_no_other():
    text = render("npu-agent.service.j2", npu_device_plugin_memory_max="256M", __npu_device_plugin_settings={"cdi_folder": "/etc/cdi"})
    assert [line for line in text.splitlines() if "Paths=" in line] == ["ReadWritePaths=-/etc/cdi"]
    plain = render("npu-agent.service.j2", npu_device_plugin_memory_max="256M", __npu_device_plugin_settings={})
    assert [line for line in text.splitlines() if line not in plain.splitlines()] == [
        "# The one folder that the agent writes beside its own. With \"-\" it serves the chips also where somebody has removed the folder.",
        "ReadWritePaths=-/etc/cdi"]
    assert "\nProtectSystem=full\nProtectHome=yes\n" in plain


def test_configuration_is_what_the_agent_takes(package, tmp_path):
    from npu_agent import config

    values = {"allocate_mode": "env", "poll_seconds": 5, "resource_name": "huawei.com/a-b", "listen": "[::]:8083"}
    (tmp_path / "config.yaml").write_text(render("config.yaml.j2", __npu_device_plugin_settings=values))
    settings = config.load(str(tmp_path / "config.yaml"), {})
    assert (settings.allocate_mode, settings.poll_seconds, settings.listen) == ("env", 5.0, ("::", 8083))
    (tmp_path / "config.yaml").write_text(render("config.yaml.j2", __npu_device_plugin_settings={}))
    assert config.load(str(tmp_path / "config.yaml"), {}).allocate_mode == "both"


# --- observation

def test_observe_a_node_without_agent(tmp_path):
    def no_systemctl(argv, timeout, **_unused):
        raise FleetError("not found", "command_missing")

    assert _agent.observe(str(tmp_path), no_systemctl) == {
        "version": None, "archive_sha256": None, "config_sha256": None, "unit_sha256": None, "active": False, "enabled": False,
        "started_after_files": None, "others": [], "pod": False,
    }


def test_observe_and_nothing_due(node):
    systemd = Systemd(node)
    present(node, systemd)
    current = node / "opt/npu-agent/current"
    marker = {"version": "0.1.0", "sha256": "abc", "tree": _agent.tree_digest(str(current))}
    (current / _agent.MARKER).write_text(json.dumps(marker))
    systemd.started = time.monotonic()  # what a play brings lies there before
    seen = _agent.observe(str(node), systemd)
    assert (seen["version"], seen["archive_sha256"], seen["active"], seen["enabled"]) == ("0.1.0", "abc", True, True)
    assert agent_due(seen, "poll_seconds: 1\n", "[Service]\n") == []
    assert agent_due(seen, "poll_seconds: 2\n", "[Service]\n") == ["the configuration is another one"]
    (current / "bin/npu-agent").unlink()
    seen = _agent.observe(str(node), systemd)
    assert (seen["version"], seen["archive_sha256"]) == (None, None)


def test_start_is_counted_in_monotonic_time():
    """The wall clock that systemd noted may be wrong by years."""
    shown = {"ActiveState": "active", "ExecMainStartTimestampMonotonic": "5000000"}
    assert _agent.started_at(shown, now=1000.0, monotonic=65.0) == 940.0
    assert _agent.started_at({"ActiveState": "inactive", "ExecMainStartTimestampMonotonic": "5"}) is None
