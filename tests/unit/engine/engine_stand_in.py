# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for docker, dockerd, systemctl and journalctl in a temporary root. It knows nothing of the product.

One program under four names. Its state is ``engine.json`` in the root: whether dockerd runs, what it has loaded, its journal.
Behaviour after moby 20.10 (daemon/reload_unix.go): a reload takes over ``runtimes`` and ``default-runtime`` only where the key stands in
the file, and a file it can not read leaves what was loaded.
"""

import json
import os
import sys

KNOWN = {
    "runtimes", "default-runtime", "hosts", "debug", "log-driver", "log-opts", "live-restore", "proxies", "registry-mirrors", "bip",
}  # fmt: skip


def main():
    name = os.path.basename(sys.argv[0])
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0]))))
    state_path = os.path.join(root, "engine.json")
    with open(state_path) as stream:
        state = json.load(stream)
    state["calls"].append([name] + sys.argv[1:])
    code = {"docker": docker, "dockerd": dockerd, "systemctl": systemctl, "journalctl": journalctl}[name](state, root, sys.argv[1:])
    with open(state_path + ".new", "w") as stream:
        json.dump(state, stream)
    os.rename(state_path + ".new", state_path)
    return code


def docker(state, root, argv):
    if argv[0] == "ps":
        print("\n".join(sorted(state["containers"])))
        return 0
    if argv[0] == "inspect":
        for name in argv[3:]:
            print(f"{state['containers'][name]} /{name}")
        return 0
    if not state["active"]:
        print(json.dumps({"ServerVersion": "", "Runtimes": None, "ContainersRunning": 0}))
        sys.stderr.write("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n")
        return 1
    runtimes = {"runc": {"path": "runc"}}
    runtimes.update(state["loaded"]["runtimes"])
    print(json.dumps({
        "ServerVersion": state["version"], "Runtimes": runtimes, "DefaultRuntime": state["loaded"]["default-runtime"],
        "LiveRestoreEnabled": False, "ContainersRunning": len(state["containers"]),
    }))
    return 0


def dockerd(state, root, argv):
    if argv == ["--version"]:
        print("Docker version {version}, build 0".format(**state))
    elif argv == ["--help"]:
        print("Usage: dockerd [OPTIONS]\n" + ("      --validate   Validate daemon configuration and exit" if state["validate"] else ""))
    elif "--validate" in argv:
        path = argv[argv.index("--config-file") + 1]
        error = load(path)[1]
        if error:
            sys.stderr.write(f"unable to configure the Docker daemon with file {path}: {error}\n")
            return 1
        print("configuration OK")
    return 0


def load(path):
    try:
        with open(path) as stream:
            config = json.load(stream)
    except FileNotFoundError:
        return {}, None
    except ValueError as error:
        return None, str(error)
    unknown = sorted(set(config) - KNOWN)
    if unknown:
        return None, "the following directives don't match any configuration option: " + ", ".join(unknown)
    if "hosts" in config:
        return None, f"the following directives are specified both as a flag and in the configuration file: hosts: {config['hosts']}"
    default = config.get("default-runtime") or "runc"
    if default != "runc" and default not in config.get("runtimes", {}):
        return None, f"specified default runtime '{default}' does not exist"
    return config, None


def systemctl(state, root, argv):
    config_path = os.path.join(root, "etc/docker/daemon.json")
    if argv[0] == "show":
        active = "active" if state["active"] else state["down"]
        start = "{ path=/usr/sbin/dockerd ; argv[]=" + state["command"] + " ; ignore_errors=no ; start_time=[n/a] }"
        print(f"LoadState=loaded\nActiveState={active}\nMainPID=0\nKillMode=process\nCanReload=yes\nExecStart={start}")
        return 0
    if argv[0] == "reset-failed":
        state["down"] = "inactive"
        return 0
    config, error = load(config_path)
    if argv[0] == "reload":
        if state["dies_on_reload"]:
            state["active"], state["down"] = False, "failed"
            state["journal"].append("panic: runtime error")
        elif error or state["deaf"]:
            state["journal"].append(f"Error reconfiguring the daemon: {error}")
        else:
            if "runtimes" in config:
                state["loaded"]["runtimes"] = config["runtimes"]
            state["loaded"]["default-runtime"] = config.get("default-runtime") or state["loaded"]["default-runtime"]
        return 0
    if argv[0] == "start":
        if state["fail_starts"] > 0 or error:
            state["fail_starts"] -= 1
            state["down"] = "failed"
            state["journal"].append("failed to start daemon: " + (error or "stand-in was told to"))
            sys.stderr.write("Job for docker.service failed because the control process exited with error code.\n")
            return 1
        state["active"] = True
        state["loaded"] = {"runtimes": config.get("runtimes", {}), "default-runtime": config.get("default-runtime") or "runc"}
        return 0
    raise SystemExit(f"unexpected: systemctl {argv}")


def journalctl(state, root, argv):
    print("\n".join(state["journal"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
