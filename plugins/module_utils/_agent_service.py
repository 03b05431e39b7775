# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configures and runs the agent's service on a node. Private to the collection."""

import json
import os
import re
import shutil
import stat
import tempfile
import time
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from ansible_collections.npu.fleet.plugins.module_utils import _agent
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

PROGRAM = _agent.HOME + "/current/bin/npu-agent"
COMMAND_SECONDS = 90
JOURNAL_LINES = 20
POLL_SECONDS = 0.2
FOLDER_MODE = 0o755
FILE_MODE, CONFIG_MODE = 0o644, 0o600  # the agent is root, and variables that it gives to containers may be tokens
SETTING = re.compile(r"([a-z_]+): (.*)")
DECLARED = re.compile(r"^(?:devices|endpoints): (.+)$", re.MULTILINE)
SECRET_LENGTH = 8  # a shorter value stands in other words, too
HIDDEN = "(not shown)"
CDI_FILE = "npu-fleet-ascend.json"  # as in the agent's cdi.py
CDI_KIND = "npu.fleet/ascend"
CDI_FOLDER = "/etc/cdi"
STATE_FOLDER = "/var/lib/npu-agent"  # StateDirectory of the unit; `state_dir` of the agent
STATE_FILE = "names.json"

# Kubelet may come later and a node without NPU has nothing to serve: both are as good as it gets without us.
SETTLED = ("serving", "waiting_for_kubelet", "no_npu")


def text_of(path):
    """Content of a text file, empty when there is none."""
    try:
        with open(path, "rb") as stream:
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


def shown(text):
    """A configuration for a diff: variables of containers may be tokens. Of a file that an admin wrote in another form than ours, what
    stands above the first line of that: YAML has many ways to say the same, and nobody here reads them."""
    lines = []
    for line in text.splitlines(True):
        if line.strip() and not line.startswith("#"):
            lines.append(shown_line(line.rstrip("\n")))
            if lines[-1] is None:
                return "".join(lines[:-1]) + HIDDEN + "\n"
        else:
            lines.append(line)
    return "".join(lines)


def shown_line(line):
    """None for one that is not of our form, `key: value` with a scalar or JSON."""
    setting = SETTING.match(line)
    if setting is None:
        return None
    key, value = setting.groups()
    try:
        found = json.loads(value)
        if key in ("devices", "endpoints"):
            found = [dict(entry, envs=dict.fromkeys(entry.get("envs") or {}, HIDDEN)) for entry in found]
            return "%s: %s\n" % (key, json.dumps(found))
    except (ValueError, TypeError, AttributeError):
        if key in ("devices", "endpoints") or not value or not value[0].isalnum() and value[0] not in "/.'":
            return None
    return line + "\n"


def told(path, text):
    """Of a file, for a diff."""
    return shown(text) if path == _agent.CONFIG else text


def secrets(text):
    """{value} of variables of containers in a configuration of our own, which nothing may print."""
    found = set()
    for declared in DECLARED.findall(text):
        try:
            found.update(str(value) for entry in json.loads(declared) for value in (entry.get("envs") or {}).values())
        except (ValueError, TypeError, AttributeError):
            pass
    return {value for value in found if len(value) >= SECRET_LENGTH}


def too_open(path):
    """Whether the configuration may be read by others than root: one of before this was seen to. A link is an admin's own affair."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) != CONFIG_MODE


def write(path, text, mode=FILE_MODE):
    """Replace a file in one step; its folder is made when missing."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        os.makedirs(folder)
        os.chmod(folder, FOLDER_MODE)
    descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def no_future(paths):
    """Set files of the future to now. The clock was set back, or somebody touched them: no start would ever be later than they are.

    Of a link itself, as changed_at() looks at it.
    """
    follow = os.utime not in os.supports_follow_symlinks
    for path in paths:
        now, changed = time.time(), _agent.changed_at(path)
        if changed is not None and changed > now:
            os.utime(path, (now, now), follow_symlinks=follow)


def cdi_folder(config):
    """The folder in which a configuration has the agent keep its CDI file, None for none."""
    return folder_of(config, "cdi_folder", None)


def folder_of(config, name, default):
    """The folder that a setting names, None for none. Of our own texts: `key: JSON` a line."""
    for line in config.splitlines():
        key, _colon, value = line.partition(":")
        if key.strip() == name:
            try:
                found = json.loads(value)
            except ValueError:
                found = value.strip().strip("'")
            return found.rstrip("/") or None if isinstance(found, str) else None
    return default


def state_files(root, config):
    """What the agent keeps of this node: names of chips, and such files that it could not use."""
    folder = folder_of(config, "state_dir", STATE_FOLDER)
    if folder is None:
        return []
    try:
        found = os.listdir(_agent.under(root, folder))
    except OSError:
        return []
    return sorted(folder + "/" + name for name in found if name == STATE_FILE or name.startswith(STATE_FILE + ".broken"))


def left_behind(root, folders):
    """CDI files of the agent in folders where nobody keeps them any more: an engine would go on to use them.

    A file of that name that another wrote is not among them.
    """
    found = []
    for folder in sorted(set(folders) - {None}):
        path = folder + "/" + CDI_FILE
        try:
            ours = json.loads(text_of(under_plain(root, path)))["kind"] == CDI_KIND
        except (ValueError, KeyError, TypeError):
            ours = False
        if ours:
            found.append(path)
    return found


def under_plain(root, path):
    """Path seen from root, or what does not exist where it is a link: a link is not ours."""
    path = _agent.under(root, path)
    return "" if os.path.islink(path) else path


def check_config(config, root, run):
    """Let the agent itself judge the text before it becomes the file."""
    program = _agent.under(root, PROGRAM)
    if not os.path.exists(program):
        raise FleetError("The agent is not on this node: there is no %s." % program, "agent_missing", object=program,
                         hint="Run npu.fleet.agent_files (role npu_agent) first.")
    folder = tempfile.mkdtemp(prefix="npu-agent-")
    try:
        path = os.path.join(folder, "config.yaml")
        write(path, config)
        result = run([program, "check", "--config", path], timeout=COMMAND_SECONDS)
    finally:
        shutil.rmtree(folder)
    if result.rc != 0:
        said = (result.stderr or result.stdout).strip().replace(path, _agent.CONFIG)
        raise FleetError("The agent refuses this configuration; nothing was written. %s" % said, "config_refused", object=_agent.CONFIG,
                         observed=said, hint="Mend npu_device_plugin_config; all settings: `%s check --settings`." % PROGRAM)


def systemctl(run, *words):
    result = run(["systemctl"] + list(words), timeout=COMMAND_SECONDS)
    if result.rc != 0:
        raise FleetError(
            "`systemctl %s` failed: %s" % (" ".join(words), (result.stderr or result.stdout).strip()), "systemctl", object=_agent.UNIT_NAME,
            observed=journal(run), hint="See `journalctl -u %s` on the node." % _agent.UNIT_NAME,
        )


def journal(run):
    """Last words of the service, for an error message."""
    try:
        result = run(["journalctl", "-u", _agent.UNIT_NAME, "-n", str(JOURNAL_LINES), "--no-pager", "-o", "cat"], timeout=COMMAND_SECONDS)
    except FleetError:
        return ""
    return result.stdout.strip()


def ask_ready(url):
    """The service's own report, None while it does not answer. Proxies of the environment have no say about this host."""
    opener = build_opener(ProxyHandler({}))
    try:
        try:
            with opener.open(url, timeout=5) as response:
                body = response.read()
        except HTTPError as error:
            body = error.read()  # 503 carries the report as well
        report = json.loads(body.decode("utf-8"))
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) and "state" in report else None


def wait_settled(url, seconds, run, *, ask=ask_ready, clock=time.monotonic, sleep=time.sleep):
    """The first report that needs no more waiting; FleetError with the service's last words when none comes in time."""
    deadline, report = clock() + seconds, None
    while True:
        answer = ask(url)
        report = answer or report
        if answer and answer["state"] in SETTLED:
            return answer
        if clock() >= deadline:
            break
        sleep(POLL_SECONDS)
    why = "; ".join(report.get("reasons") or []) if report else "no answer from %s" % url
    state = report["state"] if report else "silent"
    raise FleetError(
        "The agent runs but is not ready after %g s (%s): %s" % (seconds, state, why), "agent_not_ready", object=_agent.UNIT_NAME,
        observed="%s\n%s" % (why, journal(run)), hint="See `journalctl -u %s` on the node." % _agent.UNIT_NAME,
    )


def present(root, run, config, unit, *, url, ready_seconds, check_mode):
    """Have the service run with these texts. Returns changed, actions, reasons, state, report, before, after, diff."""
    before = _agent.observe(root, run)
    steps = _agent.decide_service(before, config, unit)
    paths = [(_agent.CONFIG, config, steps["write_config"]), (_agent.UNIT, unit, steps["write_unit"])]
    diff = [
        {"before_header": path, "after_header": path, "before": told(path, text_of(_agent.under(root, path))), "after": told(path, text)}
        for path, text, wanted in paths if wanted
    ]
    actions = ["write " + path for path, _text, wanted in paths if wanted]
    folder = cdi_folder(config)
    make_folder = folder and not os.path.isdir(_agent.under(root, folder))
    actions += ["make " + folder] if make_folder else []
    if make_folder and steps["action"] is None:
        # The unit opens this folder below a read-only /etc when it starts.
        steps["action"], steps["reasons"] = "restart", steps["reasons"] + ["the service was started without its CDI folder"]
    former = cdi_folder(text_of(_agent.under(root, _agent.CONFIG)))
    stale = left_behind(root, [former]) if former != folder else []
    actions += ["enable"] if steps["enable"] else []
    actions += [steps["action"]] if steps["action"] else []
    actions += ["remove " + path for path in stale]
    reload_units = bool(actions)
    close = not steps["write_config"] and too_open(_agent.under(root, _agent.CONFIG))
    actions += ["mode %04o of %s" % (CONFIG_MODE, _agent.CONFIG)] if close else []
    result = {"changed": bool(actions), "actions": actions, "reasons": steps["reasons"], "before": before, "diff": diff}
    if steps["write_config"] and not (check_mode and not os.path.exists(_agent.under(root, PROGRAM))):
        check_config(config, root, run)
    if check_mode:
        result.update(after=before, state=None, report=None)
        return result
    if make_folder:
        os.makedirs(_agent.under(root, folder))
        os.chmod(_agent.under(root, folder), FOLDER_MODE)
    for path, text, wanted in paths:
        if wanted:
            write(_agent.under(root, path), text, CONFIG_MODE if path == _agent.CONFIG else FILE_MODE)
    if close:
        os.chmod(_agent.under(root, _agent.CONFIG), CONFIG_MODE)
    if reload_units:
        no_future([_agent.under(root, path) for path in (_agent.CONFIG, _agent.UNIT, _agent.HOME + "/current")])
        systemctl(run, "daemon-reload")
    if steps["enable"]:
        systemctl(run, "enable", _agent.UNIT_NAME)
    if steps["action"]:
        run(["systemctl", "reset-failed", _agent.UNIT_NAME], timeout=COMMAND_SECONDS)  # a start limit of earlier failures is over now
        systemctl(run, steps["action"], _agent.UNIT_NAME)
    for path in stale:
        os.unlink(_agent.under(root, path))
    report = wait_settled(url, ready_seconds, run)
    result.update(after=_agent.observe(root, run), state=report["state"], report=report)
    return result


def absent(root, run, check_mode):
    """Have no service. The files of the agent stay; agent_files takes them."""
    before = _agent.observe(root, run)
    config = text_of(_agent.under(root, _agent.CONFIG))
    paths = left_behind(root, [cdi_folder(config), CDI_FOLDER]) + state_files(root, config)
    paths += [path for path in (_agent.CONFIG, _agent.UNIT) if os.path.lexists(_agent.under(root, path))]
    actions = (["stop"] if before["active"] else []) + (["disable"] if before["enabled"] else []) + ["remove " + path for path in paths]
    diff = [
        {"before_header": path, "after_header": path, "before": told(path, text_of(_agent.under(root, path))), "after": ""}
        for path in paths
    ]
    result = {"changed": bool(actions), "actions": actions, "reasons": [], "before": before, "after": before, "diff": diff,
              "state": None, "report": None}
    if check_mode or not actions:
        return result
    if before["active"] or before["enabled"]:
        systemctl(run, "disable", "--now", _agent.UNIT_NAME)
    for path in paths:
        os.unlink(_agent.under(root, path))
    systemctl(run, "daemon-reload")
    for folder in (os.path.dirname(_agent.CONFIG), folder_of(config, "state_dir", STATE_FOLDER)):
        try:
            os.rmdir(_agent.under(root, folder or STATE_FOLDER))
        except OSError:
            pass  # an admin keeps files of his own there
    result["after"] = _agent.observe(root, run)
    return result
