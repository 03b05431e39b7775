# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the engines that were seen counts, for plan, preflight and gates alike. Pure. Private to the collection."""


def engine_of(engines, wanted="auto"):
    """The entry of ``npu.engines`` that counts, and why there is none: ``(entry or None, text or None)``. Pure.

    The one that is named; else the kubelet's; else the only one, where docker counts for the containerd that it needs. Where a kubelet
    uses one, the others do not matter.
    """
    if not engines:
        return None, "none found"
    if wanted != "auto":
        found = next((e for e in engines if e["name"] == wanted), None)
        return found, None if found else "%s was not found, only %s" % (wanted, ", ".join(e["name"] for e in engines))
    of_kubelet = [e for e in engines if e.get("kubelet")]
    if of_kubelet:
        return of_kubelet[0], None
    names = [e["name"] for e in engines]
    # A kubelet whose engine nobody could tell (None) may use either; False says that there is none or that it uses another.
    unknown = any(e.get("kubelet", False) is None for e in engines)
    if len(engines) == 1 or (set(names) == {"docker", "containerd"} and not unknown):
        return next((e for e in engines if e["name"] == "docker"), engines[0]), None
    return None, "it cannot be told which of %s counts; set npu_runtime_engine: NAME" % " and ".join(names)


def runtime_path(engine, runtime, otherwise=None):
    """The program that an engine calls for a runtime, as the engine says it, else as its file does. Pure."""
    for known in (engine.get("runtimes"), (engine.get("configured") or {}).get("runtimes")):
        path = (known or {}).get(runtime)
        if path:
            return path
    return otherwise


def socket_of(engine):
    """Where containerd of this engine listens, without a scheme."""
    told = engine.get("socket") or engine.get("endpoint")
    if told:
        return told[len("unix://"):] if told.startswith("unix://") else told
    return "/run/containerd/containerd.sock" if engine["name"] == "containerd" else "/run/k3s/containerd/containerd.sock"
