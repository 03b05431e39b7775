# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of an agent that runs: a line for each allocation, with its pod, through restarts, kills and disks that cannot be written."""

import json
import signal
import time

import grpc
import pytest
from agent_rig import MANAGERS, RESOURCE, SOCKET, until
from kubelet_standin import api, wire

SHORT = 300  # characters of a refusal: it becomes the pod's message


def lines(rig):
    try:
        return [json.loads(line) for line in (rig.folder / "audit.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def waiting(rig):
    """What stands in the file for a process that is killed."""
    try:
        return (rig.folder / "audit.jsonl.pending").read_text()
    except FileNotFoundError:
        return ""


def await_lines(rig, count):
    return until(lambda: len(found := lines(rig)) >= count and found, what=f"{count} lines of the audit")


def call(rig, *ids):
    """Allocate without a pod, as kubelet never does; the details of a refusal, None."""
    with grpc.insecure_channel(f"unix://{rig.plugins}/{SOCKET}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            channel.unary_unary("/v1beta1.DevicePlugin/Allocate")(
                wire.encode(api.ALLOCATE_REQUEST, {"container_requests": [{"devices_ids": list(ids)}]}), timeout=60)
        except grpc.RpcError as error:
            return error.details()
    return None


def manifest(name, *containers, init=(), namespace="team"):
    made = [[{"name": each, "resources": {"limits": {RESOURCE: count}}} for each, count in part] for part in (init, containers)]
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"initContainers": made[0], "containers": made[1]}}


def test_a_line_has_all_that_is_known(pair):
    rig, _agent = pair
    pod = rig.ask("create", manifest=manifest("train", ("one", 2), ("two", 1)))
    assert pod["phase"] == "Running"
    found = {line["container"]: line for line in await_lines(rig, 2)}
    assert set(found) == {"one", "two"} and len(lines(rig)) == 2
    assert {(line["outcome"], line["namespace"], line["pod"], line["resource"]) for line in found.values()} == {
        ("given", "team", "train", RESOURCE)}
    given = {tuple(sorted(one["devices"][RESOURCE])) for one in pod["containers"].values()}
    assert {tuple(line["ids"]) for line in found.values()} == given
    line = found["one"]
    numbers = [int(name.rpartition("-")[2]) for name in line["ids"]]
    chips = {chip["phy_id"]: chip["pci_address"] for chip in rig.chips()}
    assert line["chips"] == [{"id": f"Ascend910-{n}", "pci_address": chips[n], "phy_id": n} for n in numbers]
    assert sorted(line["device_nodes"]) == sorted(f"{rig.dev}/{name}" for name in (*(f"davinci{n}" for n in numbers), *MANAGERS))
    assert 0 < line["milliseconds"] < 60000 and "note" not in line
    assert (rig.folder / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    until(lambda: not (rig.folder / "audit.jsonl.pending").exists())


def test_an_init_container_is_of_its_pod(pair):
    rig, _agent = pair
    rig.ask("create", manifest=manifest("two", ("main", 3), init=[("first", 2)]))
    found = await_lines(rig, 2)
    assert {(line["pod"], line["container"], len(line["ids"]), "note" in line) for line in found} == {
        ("two", "main", 3, False), ("two", None, 2, True)}


def test_a_refusal_has_what_is_known_of_its_cause(rig):
    """Codes with the vendor's level, lines of the kernel about this chip, no secret; kubelet's text says what to do."""
    texts = ["nvme nvme0: x", "[ascend] [devdrv] [f 1] <a> password=hunter2 lost (dev_id=3)", *(f"RKNPU: {n}" for n in range(30))]
    rig.kubelet()
    agent = rig.agent(query_timeout=2)
    agent.await_state("serving")
    address = rig.chips()[3]["pci_address"]
    texts += [f"pcieport 0000:00:02.0: AER: Corrected error received: {address}", "mlx5_core 0000:19:00.0: x"]
    (rig.folder / "kmsg").write_text("".join(f"6,{n},{n}000000,-;{text}\n" for n, text in enumerate(texts)))
    rig.put({"chips.3.error_codes": ["80E01801", "12345678"], "chips.3.health": 3})
    (rig.dev / "davinci3").unlink()
    until(lambda: rig.numbers() == (7, 8))
    told = call(rig, "Ascend910-3", "Ascend910-1")
    assert "davinci3" in told and address in told and "npu-agent discover" in told and len(told) <= SHORT
    (line,) = await_lines(rig, 1)
    assert (line["outcome"], line["reason"], line["ids"]) == ("refused", told, ["Ascend910-1", "Ascend910-3"])
    assert line["pod"] is None and "its events name it" in line["note"]
    codes = {fault["code"]: fault for fault in line["faults"]}
    assert codes["80E01801"]["chip"] == "Ascend910-3" and codes["80E01801"]["level"] and codes["80E01801"]["meaning"]
    assert codes["12345678"]["meaning"] == "not a known code"
    kernel = line["kernel_log"]
    assert len(kernel) == 20 and kernel[-1].endswith(f"received: {address}") and kernel[-2].endswith("RKNPU: 29")
    assert agent.metric("allocations_refused_total") == 1
    (rig.folder / "kmsg").write_text(f"6,1,1000000,-;{texts[1]}\n")
    call(rig, "Ascend910-3")
    assert await_lines(rig, 2)[1]["kernel_log"] == ["[    1.000000] [ascend] [devdrv] [f 1] <a> password=[redacted] (dev_id=3)"]
    (rig.folder / "kmsg").unlink()
    call(rig, "nothing")
    line = await_lines(rig, 3)[2]
    assert line["kernel_log"] is None and line["kernel_log_note"] == f"{rig.folder}/kmsg cannot be read: No such file or directory"
    assert line["chips"] == [] and line["ids"] == ["nothing"]


def test_without_pod_resources_a_line_says_so_at_once(rig):
    rig.kubelet()
    rig.agent(pod_resources="", kernel_log="").await_state("serving")
    call(rig, "Ascend910-0")
    (line,) = await_lines(rig, 1)
    assert line["pod"] is line["namespace"] is line["container"] is None
    assert line["note"] == "pod_resources is empty, so kubelet is not asked"
    call(rig, "x")
    assert await_lines(rig, 2)[1]["kernel_log_note"] == "kernel_log is empty, so the kernel's messages are not read"


@pytest.mark.parametrize("socket", ["here", "not here"])
def test_what_waits_at_a_stop_is_written(rig, socket):
    rig.kubelet()
    agent = rig.agent(**({} if socket == "here" else {"pod_resources": "/nowhere/kubelet.sock"}))
    agent.await_state("serving")
    call(rig, "Ascend910-0")
    until((rig.folder / "audit.jsonl.pending").exists)
    assert lines(rig) == [] and agent.metric("audit_pending") == 1
    assert agent.stop() == 0
    (line,) = lines(rig)
    words = "the agent ended before kubelet showed the pod" if socket == "here" else "there is no PodResources v1 on /nowhere/kubelet.sock"
    assert line["pod"] is None and line["note"] == words
    assert not (rig.folder / "audit.jsonl.pending").exists()


@pytest.mark.parametrize("how", ["stop", "anew"])
def test_a_pod_of_the_last_moment_has_its_name(pair, how):
    """A stop, and a change of settings for which the process executes itself anew, right after an allocation."""
    rig, agent = pair
    rig.config.write_text("allocate_by: nodes\nresource_name: huawei.com/other\n" if how == "anew" else "# none\n")
    rig.ask("allocate", count=1, resource=RESOURCE, pod="late")
    agent.process.send_signal(signal.SIGHUP if how == "anew" else signal.SIGTERM)
    assert [line["pod"] for line in await_lines(rig, 1)] == ["late"]
    if how == "anew":
        until(lambda: len(agent.events("started")) == 2)
    assert len(lines(rig)) == 1


def test_a_kill_loses_no_line(pair):
    """The next process finds what waited, and asks kubelet: the pod has its chips still."""
    rig, agent = pair
    pod = rig.ask("allocate", count=1, resource=RESOURCE, pod="there")
    await_lines(rig, 1)
    (entry,) = lines(rig)
    (rig.folder / "audit.jsonl").unlink()
    call(rig, "Ascend910-7")
    until(lambda: "Ascend910-7" in waiting(rig))
    agent.stop(signal.SIGKILL)
    # As if it had been killed before kubelet was asked about the pod, too.
    with (rig.folder / "audit.jsonl.pending").open("a") as stream:
        fresh = {key: value for key, value in entry.items() if key not in ("namespace", "pod", "container")}
        stream.write(json.dumps(fresh) + "\n")
    again = rig.agent(name="again")
    again.await_state("serving")
    (line,) = await_lines(rig, 1)
    assert line == entry and line["ids"] == pod["devices"][RESOURCE] and line["pod"] == "there"
    assert again.stop() == 0
    assert [line["ids"] for line in lines(rig)] == [entry["ids"], ["Ascend910-7"]]


def test_an_old_entry_is_not_named_by_who_has_its_chips_now(rig):
    rig.kubelet()
    rig.agent(name="first").await_state("serving")
    pod = rig.ask("allocate", count=1, resource=RESOURCE, pod="now")
    (entry,) = await_lines(rig, 1)
    rig.processes[-1].stop(signal.SIGKILL)
    old = {**{key: entry[key] for key in ("time", "outcome", "resource", "ids", "chips")},
           "allocation": f"{int((time.time() - 4000) * 1e6):x}-0"}
    (rig.folder / "audit.jsonl.pending").write_text(json.dumps(old) + "\n")
    rig.agent(name="second").await_state("serving")
    line = await_lines(rig, 2)[1]
    assert line["ids"] == pod["devices"][RESOURCE] and line["pod"] is None and "too late" in line["note"]


def test_a_folder_that_is_not_there_stops_no_allocation(rig):
    rig.kubelet()
    folder = rig.folder / "log"
    agent = rig.agent(audit_file=f"{folder}/audit.jsonl")
    agent.await_state("serving")
    for number in range(3):
        assert rig.ask("allocate", count=1, resource=RESOURCE, pod=f"p{number}")["phase"] == "Running"
    until(lambda: agent.metric("audit_lines_lost_total") == 3)
    report = agent.report()
    (reason,) = report["reasons"]
    assert report["ready"] and reason.startswith(f"the audit cannot be written to {folder}/audit.jsonl: No such file")
    (event,) = agent.events("the audit cannot be written")
    assert event["level"] == "error" and str(folder) in event["hint"]
    folder.mkdir()
    rig.ask("allocate", count=1, resource=RESOURCE, pod="p3")
    until(lambda: (folder / "audit.jsonl").exists() and (folder / "audit.jsonl").read_text())
    assert json.loads((folder / "audit.jsonl").read_text())["pod"] == "p3"
    until(lambda: agent.report()["reasons"] == [])


def test_the_log_instead_of_a_file(rig):
    rig.kubelet()
    agent = rig.agent(audit_file="")
    agent.await_state("serving")
    pod = rig.ask("allocate", count=1, resource=RESOURCE, pod="logged")
    (event,) = until(lambda: agent.events("allocation"))
    assert (event["pod"], event["ids"], event["level"]) == ("logged", pod["devices"][RESOURCE], "info")
    assert event["allocated_at"] <= event["time"] and lines(rig) == []


def test_the_file_changes_in_place(rig):
    rig.kubelet()
    rig.config.write_text(f"audit_file: {rig.folder}/one\n")
    agent = rig.agent(audit_file=None)
    agent.await_state("serving")
    rig.ask("allocate", count=1, resource=RESOURCE, pod="first")
    until((rig.folder / "one").exists)
    rig.config.write_text(f"audit_file: {rig.folder}/two\n")
    agent.process.send_signal(signal.SIGHUP)
    until(lambda: agent.events("configuration read again"))
    rig.ask("allocate", count=1, resource=RESOURCE, pod="second")
    until(lambda: (rig.folder / "two").exists() and '"second"' in (rig.folder / "two").read_text())
    assert '"second"' not in (rig.folder / "one").read_text() and len(agent.events("started")) == 1
    for name in ("none/three", "three"):  # a trouble goes with the setting, without an allocation
        rig.config.write_text(f"audit_file: {rig.folder}/{name}\n")
        agent.process.send_signal(signal.SIGHUP)
        until(lambda name=name: agent.events("configuration read again")[-1]["changed"]["audit_file"][1].endswith(name))
        if name == "none/three":
            rig.ask("allocate", count=1, resource=RESOURCE, pod="third")
        until(lambda name=name: bool(agent.report()["reasons"]) == (name == "none/three"))


def test_chips_of_a_pod_that_kubelet_did_not_take(pair):
    """Its second container got no chips, so that the first one's were free again at once: the next pod is not the first one's."""
    rig, agent = pair
    with pytest.raises(ValueError, match="requested number of devices unavailable"):
        rig.ask("create", manifest=manifest("refused", ("one", 1), ("two", 8)))
    rig.ask("create", manifest=manifest("next", ("all", 8)))
    found = {len(line["ids"]): line for line in await_lines(rig, 2)}
    assert found[1]["pod"] is None and "given out again" in found[1]["note"] and found[8]["pod"] == "next"
    assert agent.metric("audit_lines_without_pod_total") == 1
