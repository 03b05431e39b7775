# SPDX-License-Identifier: GPL-3.0-or-later
"""The DaemonSet's objects: valid for Kubernetes, and with no permission more than is named here with its reason."""

import base64
import copy

import celpy
import kubernetes_validate
import pytest
import yaml

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_manifest, _agent_options, _agent_pod

IMAGE = {"image": "npu-fleet/npu-agent:1"}
FULL = {**IMAGE, "profiles": ["server", "310b"], "config": {"cdi_folder": "/etc/cdi"}, "pull_secrets": ["mirror"],
        "tolerations": ["own/key"]}
LATEST = kubernetes_validate.latest_version()


def validate(objects):
    for one in objects:
        kubernetes_validate.validate(one, LATEST, strict=True)


def by_name(objects, kind="DaemonSet"):
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def pods(options=IMAGE):
    return {name: one["spec"]["template"]["spec"] for name, one in by_name(_agent_manifest.manifests(options)).items()}


def containers(options=IMAGE):
    return {one["name"]: one for spec in pods(options).values() for one in spec["containers"]}


@pytest.mark.parametrize("options", [
    IMAGE, FULL, {**IMAGE, "access": "privileged"}, {**IMAGE, "labels": False}, {**IMAGE, "confine": False},
])
def test_valid_by_the_schemas_of_the_newest_kubernetes(options):
    objects = _agent_manifest.manifests(options)
    validate(objects)
    assert yaml.safe_load(yaml.safe_dump(objects)) == objects


@pytest.mark.parametrize(("path", "value"), [
    (("spec", "template", "spec", "containers", 0, "securityContext", "capabilites"), {}),
    (("spec", "updateStrategy", "rollingUpdate", "maxSurge"), [1]), (("spec", "template", "spec", "volumes", 0, "hostPath", "typ"), "File"),
])
def test_the_validation_sees_a_slip(path, value):
    broken = copy.deepcopy(by_name(_agent_manifest.manifests(IMAGE))["npu-agent"])
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        validate([broken])


def test_no_pod_shares_more_with_the_host_than_its_folders():
    for spec in pods(FULL).values():
        assert not {"hostPID", "hostNetwork", "hostIPC", "hostUsers", "shareProcessNamespace"} & set(spec)
        assert spec["automountServiceAccountToken"] is False
        assert spec["priorityClassName"] == "system-node-critical"


def test_every_container_is_confined():
    rights = {}
    for name, one in containers(FULL).items():
        context = one["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["privileged"] and not context["allowPrivilegeEscalation"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"} and context["capabilities"]["drop"] == ["ALL"]
        assert "memory" in one["resources"]["limits"] and "cpu" in one["resources"]["requests"]
        rights[name] = context["capabilities"].get("add", [])
    assert rights == {"access": [], "agent": ["DAC_OVERRIDE", "SYSLOG"], "labels": []}


#: Each path of the host that a pod sees, whether it may write there, and why.
HOST = {
    ("access", "/var/lib/kubelet/device-plugins"): "rw: its socket for kubelet", ("access", "/dev"): "ro: which nodes there are",
    ("agent", "/var/lib/kubelet/device-plugins"): "rw: its socket for kubelet",
    ("agent", "/var/lib/kubelet/pod-resources"): "ro: who has what",
    ("agent", "/usr/local/Ascend/driver"): "ro: libraries of DCMI", ("agent", "/usr/local/dcmi"): "ro: libdcmi",
    ("agent", "/etc/ascend-docker-runtime.d"): "ro: the runtime's list", ("agent", "/var/lib/npu-agent"): "rw: names of chips",
    ("agent", "/sys"): "ro: PCI functions", ("agent", "/usr/local/bin"): "ro: npu-smi",
    ("agent", "/usr/local/sbin"): "ro: npu-smi of a 310",
}
PROGRAMS = {"/usr/local/bin", "/usr/local/sbin"}


def test_host_paths_are_those_that_are_named_with_a_reason():
    seen = {}
    for spec in pods().values():
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert len(volumes) == len(spec["volumes"])
        mounted = set()
        for one in spec["containers"]:
            for mount in one["volumeMounts"]:
                mounted.add(mount["name"])
                source = volumes[mount["name"]].get("hostPath")
                if source:
                    assert source["type"] in ("Directory", "DirectoryOrCreate")  # never a socket: it is another one after each start
                    seen[one["name"], source["path"]] = "ro" if mount.get("readOnly") else "rw"
        assert mounted == set(volumes)
    assert seen == {key: reason[:2] for key, reason in HOST.items()}


def test_boards_with_a_310b_get_files_as_files():
    boards = pods(FULL)["npu-agent-310b"]
    kinds = {volume["hostPath"]["path"]: volume["hostPath"]["type"] for volume in boards["volumes"] if "hostPath" in volume}
    assert kinds["/etc/hdcBasic.cfg"] == kinds["/var/slogd"] == kinds["/var/dmp_daemon"] == "File" and kinds["/dev/shm"] == "Directory"
    assert "/usr/local/dcmi" not in kinds
    assert _agent_pod.profile_of(["310b"]) == "310b" and _agent_pod.profile_of(["a2", "310p"]) == _agent_pod.profile_of([]) == "server"
    assert _agent_pod.profile_of(["a5"]) == "a5"


@pytest.mark.parametrize("profile", sorted(_agent_pod.SEEN))
def test_the_agent_sees_what_of_the_host_it_promises_to_containers(profile):
    """Through folders that every user of a host may read, in a place where no loader looks for a libc."""
    (spec,) = (spec for name, spec in pods({**IMAGE, "profiles": [profile]}).items() if name != "npu-agent-access")
    sources = {volume["name"]: volume["hostPath"] for volume in spec["volumes"] if "hostPath" in volume}
    agent = spec["containers"][0]
    env = {one["name"]: one.get("value") for one in agent["env"]}
    mounted = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}
    seen = env["NPU_AGENT_HOST_PATHS"].split(",")
    assert env["NPU_AGENT_HOST_ROOT"] == "/host"
    assert {path for path in mounted if path.startswith("/host/")} == {"/host/sys", *(f"/host{path}" for path in seen)}
    for path in seen:
        mount = mounted[f"/host{path}"]
        assert mount["readOnly"] is True and sources[mount["name"]]["path"] == path
    folders = {path for path in seen if sources[mounted[f"/host{path}"]["name"]]["type"] != "File"}
    assert folders <= {"/usr/local/Ascend/driver", "/usr/local/dcmi", "/usr/lib64", "/usr/lib", "/usr/bin", "/etc/ld.so.conf.d", *PROGRAMS}
    assert not {"/usr/lib64", "/usr/lib", "/usr/bin"} & set(mounted)  # the host's libc beside the image's ends in SIGBUS


def test_a_file_that_may_be_missing_is_no_volume():
    """With the type File the pod would not start, with any other there would be a folder of its name on the host."""
    files = {volume["hostPath"]["path"] for name in _agent_pod.SEEN for spec in pods({**IMAGE, "profiles": [name]}).values()
             for volume in spec["volumes"] if volume.get("hostPath", {}).get("type") == "File"}
    assert files == {path for path, kind in _agent_pod.PROFILES["310b"] if kind == "File"}


def test_a_rockchip_board_has_nothing_of_the_vendor_driver():
    spec = pods({**IMAGE, "profiles": ["rockchip"]})["npu-agent-rockchip"]
    kinds = {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert kinds == {path for container, path in HOST if container == "agent" and "scend" not in path and "ascend" not in path} - {
        "/usr/local/dcmi", *PROGRAMS}
    assert _agent_pod.profile_of(["rk3588"]) == "rockchip"


def test_only_the_container_that_writes_labels_has_a_token():
    spec = pods()["npu-agent"]
    tokens = {volume["name"] for volume in spec["volumes"] if "projected" in volume}
    holders = [one["name"] for one in spec["containers"] if any(mount["name"] in tokens for mount in one["volumeMounts"])]
    assert holders == ["labels"] and len(tokens) == 1
    assert not any("projected" in volume for volume in pods()["npu-agent-access"]["volumes"])


def test_only_the_agent_asks_for_devices():
    asking = [name for name, one in containers().items() if _agent_pod.RESOURCE in one["resources"]["limits"]]
    assert asking == ["agent"]
    forced = containers({**IMAGE, "access": "privileged"})
    assert set(forced) == {"agent", "labels"} and forced["agent"]["securityContext"]["privileged"] is True
    assert _agent_pod.RESOURCE not in forced["agent"]["resources"]["limits"]


def test_never_two_on_a_node_and_only_where_the_play_said():
    for name, one in by_name(_agent_manifest.manifests(FULL)).items():
        assert one["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%", "maxSurge": 0}
        selector = one["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (expression,) = selector["nodeSelectorTerms"][0]["matchExpressions"]
        modes = {"npu-agent": ["daemonset"], "npu-agent-310b": ["daemonset-310b"], "npu-agent-access": ["daemonset", "daemonset-310b"]}
        assert expression == {"key": "npu.fleet/agent", "operator": "In", "values": modes[name]}


def test_what_keeps_pods_away_from_npu_nodes_does_not_keep_ours():
    for spec in pods(FULL).values():
        assert {one["key"] for one in spec["tolerations"]} >= {"npu.fleet/not-ready", "huawei.com/Ascend910", "huawei.com/npu", "own/key"}


def test_rights_in_the_cluster():
    objects = _agent_manifest.manifests(IMAGE)
    (role,) = by_name(objects, "ClusterRole").values()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    policy = by_name(objects, "ValidatingAdmissionPolicy")["npu-agent-own-node"]
    assert "system:serviceaccount:npu-fleet:npu-agent" in policy["spec"]["matchConditions"][0]["expression"]
    assert not by_name(_agent_manifest.manifests({**IMAGE, "labels": False}), "ClusterRole")
    for options, policies in (({"labels": False}, ["npu-agent-own-resource"]), ({"access": "privileged"}, ["npu-agent-own-node"]),
                              ({"confine": False}, [])):
        assert list(by_name(_agent_manifest.manifests({**IMAGE, **options}), "ValidatingAdmissionPolicy")) == policies
    for name in by_name(objects, "ValidatingAdmissionPolicy"):
        bound = by_name(objects, "ValidatingAdmissionPolicyBinding")[name]["spec"]
        assert bound == {"policyName": name, "validationActions": ["Deny"]}
    order = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert order.index(("ValidatingAdmissionPolicyBinding", "npu-agent-own-resource")) < order.index(("DaemonSet", "npu-agent-access"))


def judged(policy, **request):
    """What a policy says to a request: None where it is not for it, else whether it lets it pass. Evaluated, not read."""
    spec = by_name(_agent_manifest.manifests(IMAGE), "ValidatingAdmissionPolicy")[policy]["spec"]
    world = {name: celpy.json_to_cel(value) for name, value in request.items()}

    def value(expression):
        environment = celpy.Environment()
        return bool(environment.program(environment.compile(expression)).evaluate(world))

    if not all(value(one["expression"]) for one in spec["matchConditions"]):
        return None
    return all(value(one["expression"]) for one in spec["validations"])


ASKS = {"limits": {"npu.fleet/agent": "1"}}


@pytest.mark.parametrize(("space", "pod", "answer"), [
    ("default", {"containers": [{"name": "c"}]}, True),
    ("default", {"containers": [{"name": "c", "resources": {}}]}, True),
    ("default", {"containers": [{"name": "d", "resources": {"limits": {"huawei.com/Ascend910": "1"}}}]}, True),
    ("default", {"containers": [{"name": "c", "resources": ASKS}]}, False),
    ("default", {"containers": [{"name": "c", "resources": {"requests": ASKS["limits"]}}]}, False),
    ("default", {"containers": [{"name": "c"}, {"name": "d", "resources": ASKS}]}, False),
    ("default", {"containers": [{"name": "c"}], "initContainers": [{"name": "i", "resources": ASKS}]}, False),
    ("default", {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}, True),
    ("default", {"containers": [{"name": "c", "resources": ASKS}], "serviceAccountName": "npu-agent"}, False),
    ("npu-fleet", {"containers": [{"name": "c", "resources": ASKS}], "serviceAccountName": "default"}, False),
    ("npu-fleet", {"containers": [{"name": "c", "resources": ASKS}]}, False),
    ("npu-fleet", {"containers": [{"name": "c", "resources": ASKS}], "serviceAccountName": "npu-agent"}, None),
])
def test_nobody_elses_pod_gets_the_chips_by_our_resource(space, pod, answer):
    assert judged("npu-agent-own-resource", request={"namespace": space}, object={"spec": pod}) is answer


def test_our_own_pods_are_let_in():
    for spec in pods(FULL).values():
        assert judged("npu-agent-own-resource", request={"namespace": "npu-fleet"}, object={"spec": spec}) is None


@pytest.mark.parametrize(("user", "extra", "answer"), [
    ("npu-agent", {"authentication.kubernetes.io/node-name": ["n1"]}, True),
    ("npu-agent", {"authentication.kubernetes.io/node-name": ["n2"]}, False), ("npu-agent", {}, False), ("other", {}, None),
])
def test_an_agent_changes_its_own_node_only(user, extra, answer):
    request = {"name": "n1", "userInfo": {"username": f"system:serviceaccount:npu-fleet:{user}", "extra": extra}}
    assert judged("npu-agent-own-node", request=request) is answer


def test_tokens_are_in_the_secret_of_the_agents_container_alone():
    config = {"log_level": "debug", "endpoints": [{"envs": {"TOKEN": "canary-1"}}], "devices": [{"envs": {"TOKEN": "canary-2"}}]}
    objects = _agent_manifest.manifests({**IMAGE, "config": config})
    plain = base64.b64decode(by_name(objects, "Secret")["npu-agent"]["data"]["config.yaml"]).decode()
    assert "canary-1" in plain and "canary-2" in plain and plain == _agent_manifest.whole_config({**IMAGE, "config": config})
    assert "canary" not in str([one for one in objects if one["kind"] != "Secret"])
    assert by_name(objects, "ConfigMap")["npu-agent"]["data"]["config.yaml"].count("log_level") == 1
    assert "canary" not in str(_agent_manifest.without_secrets({**IMAGE, "config": config}))
    spec = pods(IMAGE)["npu-agent"]
    (volume,) = (one for one in spec["volumes"] if "secret" in one)
    assert volume["secret"]["defaultMode"] == 0o400
    holders = [one["name"] for one in spec["containers"] if volume["name"] in [mount["name"] for mount in one["volumeMounts"]]]
    assert holders == ["agent"]


@pytest.mark.parametrize(("text", "quantity"), [
    ("512M", "512Mi"), ("1024M", "1Gi"), ("1G", "1Gi"), ("1536M", "1536Mi"), ("1048576", "1Mi"), ("512Mi", "512Mi"), ("2T", "2Ti"),
    ("1025K", "1025Ki"), ("1000", "1000"),
])
def test_memory_as_systemd_writes_it(text, quantity):
    assert _agent_options.memory_quantity(text) == quantity
    assert containers({**IMAGE, "memory_limit": text})["agent"]["resources"]["limits"]["memory"] == quantity


def test_kubelets_own_folder_is_not_that_of_plugins():
    paths = {volume["hostPath"]["path"] for spec in pods({**IMAGE, "kubelet_root": "/data/kubelet"}).values() for volume in spec["volumes"]
             if "hostPath" in volume and "kubelet" in volume["hostPath"]["path"]}
    assert paths == {"/var/lib/kubelet/device-plugins", "/data/kubelet/pod-resources"}
    moved = pods({**IMAGE, "device_plugins": "/data/plugins"})["npu-agent-access"]["volumes"]
    assert "/data/plugins" in {volume["hostPath"]["path"] for volume in moved if "hostPath" in volume}


def test_a_new_configuration_makes_new_pods_of_the_agent_only():
    before, after = (by_name(_agent_manifest.manifests({**IMAGE, "config": config})) for config in ({}, {"log_level": "debug"}))
    assert before["npu-agent"] != after["npu-agent"] and before["npu-agent-access"] == after["npu-agent-access"]


@pytest.mark.parametrize(("value", "text"), [(["/dev/rga"], '["/dev/rga"]'), ('["/dev/rga"]', '["/dev/rga"]'), ([], None), ("", None)])
def test_the_access_pod_knows_which_nodes_the_operator_adds(value, text):
    """And nothing else of the configuration."""
    access = containers({**IMAGE, "config": {"rockchip_extra": value, "log_level": "debug"}})["access"]
    env = {one["name"]: one["value"] for one in access["env"]}
    assert env == {"NPU_AGENT_DEV_ROOT": "/host/dev", **({"NPU_AGENT_ROCKCHIP_EXTRA": text} if text else {})}


@pytest.mark.parametrize(("options", "words"), [
    ({}, "needs an image"), ({**IMAGE, "access": "cdi"}, "kubelet does not hand a pod's annotations"),
    ({**IMAGE, "imagee": 1}, "no option imagee"),
    ({**IMAGE, "memory_limit": "infinity"}, "needs an amount"), ({**IMAGE, "memory_limit": "10%"}, "needs an amount"),
    ({**IMAGE, "memory_limit": "0"}, "needs an amount"), ({**IMAGE, "max_unavailable": "0"}, "a number of pods"),
    ({**IMAGE, "max_unavailable": "120%"}, "a number of pods"),
    ({**IMAGE, "config": {"backend": "remote"}}, "npu_device_plugin_mode: systemd"),
    ({**IMAGE, "config": {"backend": "paths"}}, "npu_device_plugin_mode: systemd"),
    ({**IMAGE, "profiles": ["x"]}, "no profile"), ({**IMAGE, "profiles": []}, "no profile"),
])
def test_refusals(options, words):
    with pytest.raises(FleetError) as caught:
        _agent_manifest.manifests(options)
    assert words in str(caught.value)


def test_the_configuration_is_one_that_the_agent_takes(tmp_path):
    import sys

    from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive

    _agent_archive.write_sources(tmp_path / "package")
    import subprocess

    options = {**IMAGE, "config": {"label_poll": 1.0}}
    public = by_name(_agent_manifest.manifests(options), "ConfigMap")["npu-agent"]["data"]["config.yaml"]
    for text in (_agent_manifest.whole_config(options), public):
        (tmp_path / "config.yaml").write_text(text)
        done = subprocess.run([sys.executable, "-m", "npu_agent", "check", "--config", str(tmp_path / "config.yaml")], check=False,
                              cwd=tmp_path / "package", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "/var/lib/npu-agent/" in text.partition("audit_file:")[2]
