# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a daemon.json says, of dockerd and of isulad alike. Pure. Private to the collection."""

import json


def configured(data, path, default_flag=None):
    """Return what the engine would know after its next start; no value of the file other than names, paths and the default.

    A reload of dockerd takes over a key only where it stands in the file (moby daemon/reload_unix.go), so dockerd may still have a runtime
    that the file lost. ``default_flag`` is the default runtime that the engine's command line names: it may not stand in both places.
    """
    try:
        config = _config_object(data)
        default = config.get("default-runtime") or default_flag
        if default is not None and not isinstance(default, str):
            raise ValueError('"default-runtime" is not a text')
        return {"runtimes": _config_runtimes(config), "default_runtime": default, "error": None}
    except UnicodeDecodeError as error:
        line, reason = data.count(b"\n", 0, error.start) + 1, "it is not UTF-8 text"
    except json.JSONDecodeError as error:
        # Its message may quote what stands there.
        line, reason = error.lineno, "it is not JSON"
    except (ValueError, RecursionError) as error:
        line, reason = 1, str(error)
    return no_config("%s, line %d: %s." % (path, line, reason))


def _config_object(data):
    text = (data or b"").decode("utf-8")
    config = json.loads(text) if text.strip() else {}
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object")
    return config


def _config_runtimes(config):
    runtimes = config.get("runtimes") or {}
    if not isinstance(runtimes, dict) or not all(isinstance(runtime, dict) for runtime in runtimes.values()):
        raise ValueError('"runtimes" is not an object of objects')
    return {name: str(runtime.get("path") or runtime.get("runtimeType") or "") for name, runtime in runtimes.items()}


def no_config(error):
    """Return what is told of a file that says nothing, and why."""
    return {"runtimes": {}, "default_runtime": None, "error": error}
