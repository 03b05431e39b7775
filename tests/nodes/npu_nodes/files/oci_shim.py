# SPDX-License-Identifier: GPL-3.0-or-later
"""OCI runtime in front of runc for machines that cannot grant all that engines ask for.

It takes out of the OCI spec what this kernel would refuse, so that the engines themselves keep their stock settings:
capabilities outside our bounding set, an oom_score_adj below our own, limits whose cgroup v2 controller is absent.
Installed over runc (the real one is then called NAME.distrib) or registered as an engine's default runtime.
"""
import json
import os
import sys

# In the order of their numbers in the kernel's linux/capability.h.
CAPABILITIES = [
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
    "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
    "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
    "PERFMON", "BPF", "CHECKPOINT_RESTORE",
]  # fmt: skip
CONTROLLER_OF = {"cpu": "cpu", "memory": "memory", "pids": "pids", "blockIO": "io"}
PLACES = ("/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc", "/usr/local/bin/runc")


def bounding_set(status):
    """Names of the capabilities in the CapBnd line of /proc/self/status."""
    mask = 0
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            mask = int(line.split()[1], 16)
    return {"CAP_" + name for bit, name in enumerate(CAPABILITIES) if mask >> bit & 1}


def fix_process(process, allowed, own_oom_score):
    for kind, names in (process.get("capabilities") or {}).items():
        if names:
            process["capabilities"][kind] = [name for name in names if name in allowed]
    if "CAP_SYS_RESOURCE" in allowed:
        return
    if process.get("oomScoreAdj") is not None:
        process["oomScoreAdj"] = max(process["oomScoreAdj"], own_oom_score)


def fix_resources(resources, controllers):
    """Drop limits without a controller; `controllers` is None on cgroup v1, where all stays."""
    if controllers is None:
        return
    for key, controller in CONTROLLER_OF.items():
        if controller not in controllers:
            resources.pop(key, None)
    for key in ("hugepageLimits", "unified"):
        resources.pop(key, None)


def option(arguments, *names):
    for index, word in enumerate(arguments):
        for name in names:
            if word == name and index + 1 < len(arguments):
                return arguments[index + 1]
            if word.startswith(name + "="):
                return word.split("=", 1)[1]
    return None


def read(path):
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def edit(path, change):
    document = json.loads(read(path))
    change(document)
    with open(path + ".shim", "w", encoding="utf-8") as stream:
        json.dump(document, stream)
    os.replace(path + ".shim", path)


def controllers_here():
    try:
        return set(read("/sys/fs/cgroup/cgroup.controllers").split())
    except OSError:
        return None


def resources_from_stdin(controllers):
    """`update --resources -`: the limits come on standard input, and go on to runc the same way."""
    document = json.load(sys.stdin)
    fix_resources(document, controllers)
    passed_on = os.memfd_create("resources")
    os.write(passed_on, json.dumps(document).encode())
    os.lseek(passed_on, 0, os.SEEK_SET)
    os.dup2(passed_on, 0)


def rewrite(arguments):
    allowed = bounding_set(read("/proc/self/status"))
    own_score = int(read("/proc/self/oom_score_adj"))
    controllers = controllers_here()

    def whole(document):
        fix_process(document.get("process") or {}, allowed, own_score)
        fix_resources((document.get("linux") or {}).get("resources") or {}, controllers)

    if {"create", "run", "restore"} & set(arguments):
        edit(os.path.join(option(arguments, "--bundle", "-b") or os.getcwd(), "config.json"), whole)
    elif "exec" in arguments and option(arguments, "--process", "-p"):
        edit(option(arguments, "--process", "-p"), lambda process: fix_process(process, allowed, own_score))
    elif "update" in arguments:
        source = option(arguments, "--resources", "-r")
        if source == "-":
            resources_from_stdin(controllers)
        elif source:
            edit(source, lambda resources: fix_resources(resources, controllers))


def real_runc(own):
    for path in (own + ".distrib", *PLACES):
        if os.path.exists(path) and not os.path.samefile(path, own):
            return path
    sys.exit("oci-shim: no runc found beside or below " + own)


def main():
    rewrite(sys.argv[1:])
    runc = real_runc(os.path.abspath(__file__))
    os.execv(runc, [runc, *sys.argv[1:]])  # noqa: S606 - becoming runc is the purpose


if __name__ == "__main__":
    main()
