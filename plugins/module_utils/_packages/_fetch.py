# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bringing a package from an HTTP(S) depot into the node's cache, with resume. Private to the collection.

The cache is <cache_dir>/<sha256>/<file>: a file there is complete and was checked when it came; ``.part`` is one on its way.
"""

import base64
import errno
import http.client
import ipaddress
import json
import os
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _runfile

_BLOCK = 1 << 20
_STALL_SECONDS = 60
_FAILURES = 4
_SPARE = 64 << 20


class _Restart(Exception):
    """What is in the cache is not the beginning of what the server has."""


def is_url(src):
    return src.lower().startswith(("http://", "https://"))


def public(src):
    """Return ``src`` without user, password and query, which may hold secrets."""
    if not is_url(src):
        return src
    parts = urllib.parse.urlsplit(src)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def secrets(src):
    """Return the texts in ``src`` that must not be printed."""
    if not is_url(src):
        return []
    parts = urllib.parse.urlsplit(src)
    found = [parts.password, urllib.parse.unquote(parts.password or ""), parts.query]
    return sorted({text for text in found if text})


def file_name(src):
    """Return the file name at the end of a path or URL."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(src).path) if is_url(src) else src
    return os.path.basename(path.rstrip("/"))


def provide(src, sha256, cache_dir, timeout):
    """Return (path, whether it was downloaded) of a checked package file.

    A path on the node is checked and used where it is; a URL is brought into the cache first, where it stays for later runs.
    """
    name = file_name(src)
    if not is_url(src):
        _runfile.check(src, name, sha256)
        return src, False
    folder = os.path.join(cache_dir, sha256.lower())
    path = os.path.join(folder, name)
    if _known_good(path, sha256):
        return path, False
    os.makedirs(folder, 0o700, exist_ok=True)
    if os.path.exists(path):
        # Changed behind our back, or a note was lost.
        try:
            _runfile.check(path, name, sha256)
            _note(path, sha256)
            return path, False
        except FleetError:
            os.unlink(path)
    _download(src, path, sha256, time.monotonic() + timeout)
    return path, True


def _note_path(path):
    return path + ".checked"


def _stamp(path):
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _note(path, sha256):
    """Remember that this very file was hashed: several GB are not read again on every run."""
    with open(_note_path(path), "w") as stream:
        json.dump({"sha256": sha256.lower(), "stamp": _stamp(path)}, stream)


def _known_good(path, sha256):
    try:
        with open(_note_path(path)) as stream:
            note = json.load(stream)
        return note == {"sha256": sha256.lower(), "stamp": _stamp(path)}
    except (OSError, ValueError):
        return False


def _download(src, path, sha256, deadline):
    part = path + ".part"
    name = os.path.basename(path)
    resumed = _size(part) > 0
    _receive_all(src, part, deadline)
    try:
        _runfile.check(part, name, sha256)
    except FleetError:
        _remove(part)
        if not resumed:
            raise
        # The old beginning may be of another file that had this name: once more from the start.
        _receive_all(src, part, deadline)
        try:
            _runfile.check(part, name, sha256)
        except FleetError:
            _remove(part)
            raise
    os.chmod(part, 0o700)
    os.rename(part, path)
    _note(path, sha256)


def _receive_all(src, part, deadline):
    """Receive until the file is whole; a broken connection is taken up where it broke as long as bytes arrive."""
    failures = 0
    while True:
        before = _size(part)
        try:
            _receive(src, part, deadline)
            return
        except _Restart:
            _remove(part)
            reason = "the server changes the file all the time"
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise _failed(src, "the server answers %d %s" % (error.code, error.reason)) from error
            reason = "the server answers %d %s" % (error.code, error.reason)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise _failed(part, error.strerror) from error
            reason = _words(error)
        failures = 0 if _size(part) > before else failures + 1
        if failures >= _FAILURES or time.monotonic() >= deadline:
            raise _failed(src, reason)
        time.sleep(min(0.2 * 2 ** failures, max(0.0, deadline - time.monotonic())))


def _receive(src, part, deadline):
    have = _size(part)
    request, opener = _request(src)
    if have:
        request.add_header("Range", "bytes=%d-" % have)
    try:
        response = opener.open(request, timeout=_STALL_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
                return
            raise _Restart() from error
        raise
    with response:
        if have and response.status == 206:
            if not response.headers.get("Content-Range", "").startswith("bytes %d-" % have):
                raise _Restart()
        else:
            have = 0
        length = response.headers.get("Content-Length")
        _room(part, int(length) if length else 0)
        with open(part, "ab" if have else "wb") as stream:
            left = int(length) if length else None
            while True:
                block = response.read(_BLOCK)
                if not block:
                    break
                stream.write(block)
                left = None if left is None else left - len(block)
                if time.monotonic() > deadline:
                    raise socket.timeout("the time is up")
            stream.flush()
            os.fsync(stream.fileno())
        if left:
            raise http.client.HTTPException("the connection ended %d bytes too early" % left)


def _request(src):
    parts = urllib.parse.urlsplit(src)
    host = parts.netloc.rpartition("@")[2]
    clean = urllib.parse.urlunsplit((parts.scheme, host, urllib.parse.quote(parts.path, safe="/%~+:@!$&'()*,;="), parts.query, ""))
    # Only http and https come here (is_url).
    request = urllib.request.Request(clean, headers={"User-Agent": "npu.fleet", "Accept-Encoding": "identity"})  # noqa: S310
    if parts.username:
        pair = "%s:%s" % (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
        # Not sent on to another host by a redirect.
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii"))
    proxies = {} if _is_loopback(parts.hostname) else urllib.request.getproxies_environment()
    return request, urllib.request.build_opener(urllib.request.ProxyHandler(proxies))


def _is_loopback(host):
    if (host or "").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _room(part, wanted):
    folder = os.path.dirname(part)
    free = shutil.disk_usage(folder).free
    if wanted and free < wanted + _SPARE:
        message = "%s has %d MiB free, the package needs %d MiB." % (folder, free >> 20, (wanted + _SPARE) >> 20)
        raise FleetError(message, "no_space", "fetch", object=folder, observed=free, hint="Make room there: `df -h %s`." % folder)


def _words(error):
    reason = getattr(error, "reason", None)
    return str(reason or error or type(error).__name__)


def _failed(src, reason):
    message = "%s could not be fetched: %s." % (public(src), reason)
    look = "Check npu_fleet_depot: `curl -I %s` on the node." if is_url(src) else "Look at the folder: `ls -ld %s`, `df -h %s`."
    hint = look % ((public(src),) * look.count("%s"))
    return FleetError(message, "download_failed", "fetch", object=public(src), observed=reason, hint=hint)


def _size(path):
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _remove(path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
