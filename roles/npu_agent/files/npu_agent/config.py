# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's settings: one YAML file, each key also from the environment as NPU_AGENT_<KEY>.

SETTINGS is the whole list. A wrong file is refused with every fault in it: file, line, key, what is allowed.
"""

import json
import os
import re
from types import SimpleNamespace

PATH = "/etc/npu-agent/config.yaml"
PREFIX = "NPU_AGENT_"
OTHER_VARIABLES = {"NPU_AGENT_CONFIG"}
SOCKET_PATH_LIMIT = 107  # bytes, AF_UNIX on Linux
SOCKET_NAME_ROOM = 40
NAME_LIMIT = 63  # of a resource, behind its '/'
KIND_LIMIT = len("-10c.3cpu.16g.ndvpp")  # the longest kind of units.py


class ConfigError(Exception):
    """All faults of a configuration, one text each."""

    def __init__(self, faults):
        super().__init__("\n".join(faults))
        self.faults = faults


def path(value):
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError("an absolute path")
    return value.rstrip("/") or "/"


def path_or_empty(value):
    return "" if value in ("", None) else path(value)


def paths(value):
    try:
        return tuple(path(one.strip()) for one in str(value or "").split(",") if one.strip())
    except ValueError:
        raise ValueError("absolute paths with commas between; empty") from None


def folder_for_sockets(value):
    value = path(value)
    if len(os.fsencode(value)) > SOCKET_PATH_LIMIT - SOCKET_NAME_ROOM:
        limit = SOCKET_PATH_LIMIT - SOCKET_NAME_ROOM
        raise ValueError(f"a path of at most {limit} bytes, because a socket's whole path has room for {SOCKET_PATH_LIMIT}")
    return value


def one_of(*words):
    def check(value):
        if value not in words:
            raise ValueError(", ".join(words))
        return value

    return check


def number(low, high, words="a number"):
    def check(value):
        allowed = f"{words} from {low} to {high}"
        try:
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(allowed) from None
        if isinstance(value, bool) or not low <= found <= high:
            raise ValueError(allowed)
        return found

    return check


def seconds(low, high):
    return number(low, high, "seconds")


def whole(low, high):
    within = number(low, high, "a whole number")

    def check(value):
        found = within(value)
        if found != int(found):
            raise ValueError(f"a whole number from {low} to {high}")
        return int(found)

    return check


# What kubelet accepts was measured, and its source read: the API server has the same rule for pods (IsExtendedResourceName; the whole
# name has to fit behind "requests." in a quota). The first rule that a name breaks is told. d: domain, n: name.
LABELS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
RESOURCE_RULES = (
    (lambda d, n: n is None, "it has no domain in front of a '/'"),
    (lambda d, n: "/" in n, "it has more than one '/'"),
    (lambda d, n: not d, "its domain is empty"),
    (lambda d, n: d != d.lower(), "its domain has capitals"),
    (lambda d, n: "_" in d, "its domain has an underscore"),
    (lambda d, n: not LABELS.fullmatch(d), "its domain is none: parts of a-z, 0-9 and '-', with dots between"),
    (lambda d, n: d.endswith("kubernetes.io"), "domains that end with kubernetes.io belong to Kubernetes"),
    (lambda d, n: d.startswith("requests."), "'requests.' in front belongs to quotas of Kubernetes"),
    (lambda d, n: len(d) > 253 - len("requests."), "its domain has more than 244 characters"),
    (lambda d, n: not n, "there is nothing behind its '/'"),
    (lambda d, n: len(n) > NAME_LIMIT, f"the part behind its '/' has more than {NAME_LIMIT} characters"),
    (lambda d, n: not re.fullmatch(r"[-A-Za-z0-9_.]*", n), "the part behind its '/' has more than letters, digits, '-', '_', '.'"),
    (lambda d, n: not (n[0] + n[-1]).isalnum(), "the part behind its '/' must begin and end with a letter or a digit"),
)


def resource_name(value):
    if value in ("", None):
        return ""
    domain, slash, name = str(value).partition("/")
    for broken, words in RESOURCE_RULES:
        if broken(domain, name if slash else None):
            raise ValueError(f"empty (by family), or a name such as huawei.com/Ascend910; of this one {words}")
    return str(value)


def notes(settings):
    """What is right but may surprise, one text each."""
    name, found = settings.resource_name.rpartition("/")[2], []
    if settings.cdi_folder and settings.backend not in ("auto", "ascend"):
        found.append(f"cdi_folder is set, but the backend {settings.backend} has no CDI specification: none is kept")
    if settings.allocate_mode == "env" and settings.allocate_mounts == "always":
        found.append("allocate_mounts is always, but with `allocate_mode: env` the vendor's runtime mounts the driver's files, and the "
                     "answer to kubelet has none: leave it out, or set `allocate_mode: both`")
    if len(name) <= NAME_LIMIT - KIND_LIMIT:
        return found
    return [*found, f"resource_name has {len(name)} characters behind its '/': kinds of slices (vNPUs) add up to {KIND_LIMIT}, and those "
                    f"whose names have more than {NAME_LIMIT} then are not offered"]


HOST = re.compile(r"([\w-]{1,63}(\.[\w-]{1,63})*\.?)?|\[[0-9A-Fa-f:.]+\]")


def address(value):
    """(host, port): "" is every address. The forms that other exporters take, so that nobody has to look up ours."""
    allowed = "HOST:PORT such as 127.0.0.1:8083, :8083 or [::]:8083 for all addresses, 8083 for this host alone"
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(allowed)
    host, colon, port = str(value).rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(allowed)
    if len(host) > 253 or not HOST.fullmatch(host):
        raise ValueError(f"{allowed}; HOST is an IP address, an IPv6 one in brackets, or a DNS name: parts of letters, digits and '-' with "
                         "single dots between")
    return host.strip("[]") if colon else "127.0.0.1", int(port)


def declared(kind):
    """A list in YAML, or as JSON from the environment; backends/declared.py has its rules."""

    def check(value):
        if value in ("", None) or value == []:
            return []
        from .backends import declared as rules  # noqa: PLC0415  most configurations have none

        return getattr(rules, kind)(value)

    return check


def node_name(value):
    if value in ("", None):
        return ""
    if not isinstance(value, str) or len(value) > 253 or not LABELS.fullmatch(value):
        raise ValueError("empty (the variable NODE_NAME), or the name of a Node: a lower-case DNS name")
    return value


def label_keys(value):
    keys = [key.strip() for key in str(value or "").split(",") if key.strip()]
    if not all(re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", key) for key in keys):
        raise ValueError("keys of labels with commas between, such as accelerator,npu.fleet/link")
    if "npu.fleet/ready" in keys:
        raise ValueError("keys without npu.fleet/ready: by that a play sees that the node may take work")
    return tuple(keys)


# key: (default, check, what it is)
SETTINGS = {
    "backend": (
        "auto", one_of("auto", "ascend", "rockchip", "paths", "remote"),
        "kind of devices; auto: rockchip where there is a Rockchip NPU and no Ascend one, else ascend",
    ),
    "devices": ([], declared("devices"), "of the backend paths: resources and the device nodes that are theirs, see docs/backends.md"),
    "endpoints": ([], declared("endpoints"), "of the backend remote: resources and the network addresses that are theirs"),
    "rockchip_extra": ([], declared("extra"), "further device nodes for each container with a Rockchip NPU, where they exist: /dev/rga"),
    "kubelet_dir": ("/var/lib/kubelet/device-plugins", folder_for_sockets, "kubelet's folder for device plugins (kubelet has it fixed)"),
    "sysfs_root": ("/sys", path, "where sysfs is mounted"),
    "dev_root": ("/dev", path, "where the device nodes are"),
    "proc_root": ("/proc", path, "where procfs is mounted"),
    "host_root": ("/", path, "where the host's files are seen; containers get those of the driver by the paths that they have on the host"),
    "host_paths": ("", paths, "what of the host is seen there, with commas between; empty: everything"),
    "install_path": ("/usr/local/Ascend", path, "where the driver is installed"),
    "dcmi_library": ("", path_or_empty, "libdcmi.so; empty: the driver's own places"),
    "family": ("auto", one_of("auto", "310", "310p", "310b", "910", "a2", "a3", "a5"), "which NPUs to serve where there are several kinds"),
    "resource_name": ("", resource_name, "extended resource; empty: the one of the family"),
    "allocate_mode": ("both", one_of("devices", "env", "both"), "what a container gets: device nodes, the vendor runtime's variable"),
    "allocate_mounts": ("auto", one_of("auto", "always", "never"), "mounts of the driver's files; auto: without the vendor's runtime"),
    "shares": (1, whole(1, 100), "ids for each chip; with more than 1 several containers share it, and nothing keeps them apart"),
    "state_dir": ("/var/lib/npu-agent", path_or_empty, "where names of chips are kept, so that they survive a renumbering; empty: nowhere"),
    "pod_resources": (
        "/var/lib/kubelet/pod-resources/kubelet.sock", path_or_empty,
        "kubelet's socket that tells which pod has which chip; empty: it is not asked",
    ),
    "audit_file": (
        "/var/log/npu-agent/audit.jsonl", path_or_empty,
        "where each allocation has its line, in a folder that exists; empty: in the log, as event \"allocation\"",
    ),
    "kernel_log": ("/dev/kmsg", path_or_empty, "where the kernel's messages about a refused allocation are read; empty: they are not"),
    "on_stop": ("keep", one_of("keep", "drain"), "drain: take the chips out of kubelet's capacity before the service ends"),
    "allocate_by": (
        "nodes",
        one_of("nodes", "cdi"),
        "how a container gets it: in the answer to kubelet, or by CDI names (needs cdi_folder and an engine with CDI: pods on any other "
        "run without their chips)",
    ),
    "cdi_folder": ("", path_or_empty, "folder such as /etc/cdi where `serve` keeps the CDI specification; empty: none is kept"),
    "cdi_mounts": (
        "/etc/ascend-docker-runtime.d/base.list", path, "the vendor runtime's list of the driver's files for containers; without it, ours",
    ),
    "cdi_links": ("family", one_of("family", "allow", "refuse"), "symbolic links in that list; family: taken where its boards need it"),
    "unhealthy_from": (
        "major", one_of("minor", "major", "critical"), "lowest DCMI health that takes a chip out of service, where no codes decide it"),
    "fault_file": ("", path_or_empty, "file with other levels for fault codes, as the vendor's faultCode.json; empty: none"),
    "recovery_seconds": (10.0, seconds(0, 86400), "how long a chip must be without a fault before it takes work again"),
    "flap_count": (3, whole(0, 1000), "a chip that goes out of service so often within flap_window stays out for flap_hold; 0: never"),
    "flap_window": (3600.0, seconds(1, 864000), "time in which flap_count counts"),
    "flap_hold": (1800.0, seconds(1, 864000), "how long a flapping chip stays out of service after its last fault"),
    "degraded_temperature": (85.0, number(0, 200), "°C from which a chip comes last in preferred allocation; 0: never"),
    "degraded_memory": (5.0, number(0, 100), "chips of a NUMA node with less memory available than this percentage come last; 0: never"),
    "degraded_seconds": (3600.0, seconds(0, 864000), "how long an ECC error or a link that flapped has a chip come last"),
    "probe": ("", path_or_empty, "program that is asked for each chip, beside DCMI; empty: none"),
    "probe_period": (60.0, seconds(1, 86400), "time between two runs of the probe for one chip"),
    "probe_timeout": (10.0, seconds(0.1, 600), "time that one run of the probe may take"),
    "poll_seconds": (5.0, seconds(0.1, 3600), "time between two looks at the chips; at most 1 where the driver tells no fault events"),
    "query_timeout": (5.0, seconds(0.1, 600), "time that DCMI may take for one chip; then that chip waits in a process of its own"),
    "stuck_retry": (60.0, seconds(0.1, 86400), "after how long a query that does not come back is given up and tried anew"),
    "keep_last_state": (30.0, seconds(0, 3600), "how long a chip keeps its state while DCMI does not answer"),
    "dcmi": ("required", one_of("required", "optional"), "optional: serve chips without a DCMI library too; nobody tells their health"),
    "listen": ("127.0.0.1:8083", address, "address of /healthz, /readyz and /metrics"),
    "node_name": ("", node_name, "`npu-agent labels`: which Node this is; empty: what the variable NODE_NAME says"),
    "kubeconfig": ("", path_or_empty, "`npu-agent labels`: how the Kubernetes API is reached; empty: by the ServiceAccount of the pod"),
    "label_poll": (5.0, seconds(0.1, 60), "`npu-agent labels`: time between two questions to `serve`, at `listen`"),
    "label_period": (40.0, seconds(1, 3600), "`npu-agent labels`: time between two looks at the Node where nothing changes, about"),
    "label_keep": ("", label_keys, "`npu-agent labels`: keys of labels that are left alone, with commas between"),
    "taint_after": (15.0, seconds(0, 3600), "`npu-agent labels`: how long a node must not be ready before it gets its taint"),
    "log_level": ("info", one_of("debug", "info", "warning", "error"), "lowest level that is logged"),
}

# What settings have to do with each other: (broken, the key to mend, words).
CROSS_RULES = (
    (lambda s: s.devices and s.backend != "paths", "devices", "so `backend: paths` must be set"),
    (lambda s: s.endpoints and s.backend != "remote", "endpoints", "so `backend: remote` must be set"),
    (lambda s: s.backend == "paths" and not s.devices, "backend", "so `devices` must name at least one resource"),
    (lambda s: s.backend == "remote" and not s.endpoints, "backend", "so `endpoints` must name at least one"),
    (lambda s: s.resource_name and s.backend in ("paths", "remote"), "resource_name",
     "but with this backend each entry has its own `resource`: leave it out"),
    (lambda s: s.allocate_by == "cdi" and s.backend not in ("auto", "ascend"), "allocate_by",
     "but only the backend ascend has a CDI specification: leave it out"),
    (lambda s: s.allocate_by == "cdi" and not s.cdi_folder, "allocate_by",
     "so cdi_folder must be set, to a folder that the engine reads: /etc/cdi"),
    (lambda s: s.allocate_by == "cdi" and s.allocate_mounts == "always", "allocate_mounts",
     "but with `allocate_by: cdi` the mounts stand in the CDI specification: leave it out"),
    (lambda s: s.stuck_retry < s.query_timeout, "stuck_retry", "which is less than query_timeout"),
    (lambda s: s.probe and s.probe_timeout > s.probe_period, "probe_timeout", "which is more than probe_period"),
)
# A line of key and JSON scalar that means the same in YAML.
PLAIN = re.compile(r'([a-z_]+): (\[\]|"[^"\\\x00-\x1f\x7f-\uffff]*"|-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,15})?|true|false|null) *')


def chosen_file(file=None, environ=None):
    """The path that was asked for, None: the default one."""
    return file or (os.environ if environ is None else environ).get("NPU_AGENT_CONFIG")


def load(file=None, environ=None, lost=False):
    """The settings as attributes. A file that was asked for must exist; without the default file the defaults hold.

    lost: it had something in it before. Whoever removed it, or is just writing it, does not want the defaults.
    """
    environ = os.environ if environ is None else environ
    chosen = chosen_file(file, environ)
    given, faults = read_file(chosen or PATH, must_exist=bool(chosen) or lost, must_say=lost)
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        key = variable[len(PREFIX):].lower()
        place = f"environment variable {variable}"
        if key not in SETTINGS:
            faults.append(f"{place}: there is no setting {key!r}{suggestion(key)}")
        else:
            given[key] = (environ[variable], place)
    values = {}
    for key, (default, check, _text) in SETTINGS.items():
        value, place = given.get(key, (default, "default"))
        try:
            values[key] = check(value)
        except ValueError as error:
            # A list may have secrets in it, and its rules say themselves which entry they are about.
            faults.append(f"{place}: {key}: {error}" if isinstance(default, list) else f"{place}: {key} is {value!r}; allowed: {error}")
    for rule, key, words in CROSS_RULES:
        if not faults and rule(SimpleNamespace(**values)):
            said = "set" if isinstance(values[key], list) else repr(values[key])
            faults.append(f"{given.get(key, (None, 'default'))[1]}: {key} is {said}, {words}")
    if faults:
        raise ConfigError(faults)
    return SimpleNamespace(**values)


def read_file(name, must_exist, must_say=False):
    """({key: (value, place)}, faults) of a YAML file whose top is a mapping of scalars."""
    try:
        with open(name, encoding="utf-8") as stream:
            text = stream.read()
    except FileNotFoundError:
        return {}, [f"{name}: there is no such file"] if must_exist else []
    except (OSError, UnicodeDecodeError) as error:
        return {}, [f"{name}: cannot be read: {error}"]
    if must_say and not text.strip():
        return {}, [f"{name}: is empty now, and was not before; for the defaults write a comment into it"]
    given = read_plain(name, text)
    return (given, []) if given is not None else read_yaml(name, text)


def read_plain(name, text):
    """The same for a text of plain `key: value` lines, as the role writes it; None for any other. YAML takes memory and time to load."""
    given = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip(" ") or line.startswith("#"):
            continue
        match = PLAIN.fullmatch(line)
        if match is None or match.group(1) not in SETTINGS or match.group(1) in given:
            return None
        key, text = match.groups()
        given[key] = (as_word(key, text, json.loads(text)), f"{name} line {number}")
    return given


def as_word(key, text, value):
    """What reads as a number is the word that stands there where the setting is one: a family such as 310, a Node named by digits alone."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return text if is_number and isinstance(SETTINGS[key][0], str) else value


def read_yaml(name, text):
    import yaml  # noqa: PLC0415  most files do not need it

    given, faults = {}, []
    try:
        top = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" line {mark.line + 1}"
        return given, [f"{name}{line}: is not YAML: {problem(error)}"]
    if top is None:
        return given, []
    if not isinstance(top, yaml.MappingNode):
        return given, [f"{name} line 1: must be a list of 'key: value' lines"]
    for key_node, value_node in top.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
        place = f"{name} line {key_node.start_mark.line + 1}"
        if key not in SETTINGS:
            faults.append(f"{place}: there is no setting {key!r}{suggestion(key)}")
        elif key in given:
            faults.append(f"{place}: {key} is set a second time")
        elif twice(value_node):
            faults.append(f"{name} line {twice(value_node)}: {key}: a key is there twice")
        else:
            try:
                given[key] = (as_word(key, value_node.value, yaml.SafeLoader("").construct_object(value_node, deep=True)), place)
            except Exception as error:  # of many kinds: of a date that is none, a tag that nobody knows; it quotes what may be a token
                mark = getattr(error, "problem_mark", None) or key_node.start_mark
                faults.append(f"{name} line {mark.line + 1}: {key}: has a value that YAML cannot read as what it looks like, a date, a "
                              "number or a tag: put it into quotes")
    return given, faults


def problem(error):
    """What a parser says, without the words of the file that it quotes: they may be a token."""
    text = getattr(error, "problem", None) or getattr(error, "reason", None)
    if text is None:
        return "it is nested too deeply" if isinstance(error, RecursionError) else "it cannot be read"
    return re.sub(r"""'([^']*)'|"[^"]*\"""", lambda found: found.group() if is_sign(found.group(1)) else "(not shown)", str(text))


def is_sign(quoted):
    """One of YAML's own: a letter such as ':', a kind of token such as '<block end>'."""
    return quoted is not None and (len(quoted) == 1 or quoted.startswith("<"))


def twice(top):
    """The line of a key that its mapping has already, None without one."""
    nodes, seen = [top], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or isinstance(node.value, str):  # an alias may lead back to what it is in
            continue
        seen.add(id(node))
        keys = set()
        for one in node.value:
            key, value = one if isinstance(one, tuple) else (None, one)
            nodes.append(value)
            if key is not None and isinstance(key.value, str):
                if key.value in keys:
                    return key.start_mark.line + 1
                keys.add(key.value)
    return None


def suggestion(key):
    import difflib  # noqa: PLC0415  memory that only a faulty file needs

    near = difflib.get_close_matches(key, SETTINGS, n=1)
    return f" (did you mean {near[0]}?)" if near else f"; there are: {', '.join(SETTINGS)}"
