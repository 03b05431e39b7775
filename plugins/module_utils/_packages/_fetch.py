# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bringing a package into the node's cache, from an HTTP(S) depot (with resume) or a path. Private to the collection.

The cache is <cache_dir>/<sha256>/<file>: a file there is complete and was checked when it came; ``.part`` is one on its way,
``.checked`` the note that it need not be read again. Every package that runs lies there.
"""

import base64
import errno
import hashlib
import http.client
import ipaddress
import json
import os
import re
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _journal, _runfile

_BLOCK = 1 << 20
_STALL_SECONDS = 60
_FAILURES = 4
_SPARE = 64 << 20
# Failures of one server that another one need not have.
_ANOTHER_MAY_HELP = ("download_failed", "checksum_differs", "package_truncated", "package_invalid")


class _Restart(Exception):
    """What is in the cache is not the beginning of what the server has."""


def is_url(src):
    return src.lower().startswith(("http://", "https://"))


def public(src):
    """Return ``src`` without user, password and query, which may hold secrets."""
    if not is_url(src):
        return src
    parts = _split(src)
    if parts is None:
        return src.partition(":")[0] + "://(no valid URL)"
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def secrets(src):
    """Return the texts in ``src`` that must not be printed."""
    if not is_url(src):
        return []
    parts = _split(src)
    if parts is None:
        return [src]
    # A user without a password is a token.
    secret = parts.password or parts.username or ""
    found = [secret, urllib.parse.unquote(secret), parts.query]
    return sorted({text for text in found if text})


def _split(src):
    """The parts of a URL; None when it has no valid ones, as with a password that has a slash as it is."""
    try:
        parts = urllib.parse.urlsplit(src)
        # Looking at the port is what checks it.
        return parts if parts.hostname and (parts.port is None or parts.port >= 0) else None
    except ValueError:
        return None


def check_url(src):
    """Raise FleetError when ``src`` is no valid URL. The message does not repeat it, for a password may stand anywhere in it."""
    if _split(src) is None:
        raise FleetError(
            "The address of the depot is no valid URL.", "depot_invalid", "fetch",
            hint="Look at npu_fleet_depot. In a password, /, ?, # and @ are written %2F, %3F, %23 and %40.",
        )


def file_name(src):
    """Return the file name at the end of a path or URL."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(src).path) if is_url(src) else src
    return os.path.basename(path.rstrip("/"))


def cached(sha256, name, cache_dir):
    """Return where a package lies in the cache."""
    return os.path.join(cache_dir, sha256.lower(), name)


def ready(sha256, name, cache_dir):
    """Return the path of a package that lies in the cache and is right, or None; one that is not right is removed.

    What was checked when it came is not read again while size and time of change are the noted ones.
    """
    path = cached(sha256, name, cache_dir)
    if _known_good(path, sha256):
        return path
    if not os.path.exists(path):
        return None
    # Changed behind our back, or the note was lost.
    try:
        _runfile.check(path, name, sha256)
    except FleetError:
        os.unlink(path)
        return None
    _note(path, sha256)
    return path


def provide(src, sha256, cache_dir, timeout, *, mirrors=(), note=None):
    """Return the path in the cache of a checked package file; it is brought there from a path on the node or from a URL.

    What is there already needs no source. Of several URLs (``src``, then ``mirrors``) the next one is taken when one fails, and goes
    on where that one stopped. ``note(event)`` is told "fetched" and "verified".
    """
    note = note or (lambda event: None)
    name = file_name(src)
    path = ready(sha256, name, cache_dir)
    if path:
        return path
    path = cached(sha256, name, cache_dir)
    _make_folder(os.path.dirname(path))
    if is_url(src):
        _download((src,) + tuple(mirrors), path, sha256, time.monotonic() + timeout, note)
    else:
        _take(src, path, sha256, note)
    return path


def accept(staged, src, sha256, cache_dir, note=None):
    """Bring a file that was transferred to ``staged`` into the cache and remove it there; return its path.

    It may belong to another user, who could still write to it: so it is copied, and what was copied is checked.
    """
    path = cached(sha256, file_name(src), cache_dir)
    try:
        if not _known_good(path, sha256):
            _make_folder(os.path.dirname(path))
            _copy(staged, path, sha256, note or (lambda event: None))
    finally:
        _remove(staged)
    return path


def discard(staged):
    """Remove a transferred file that was not needed."""
    if staged:
        _remove(staged)


def prune(cache_dir, keep):
    """Remove packages from the cache whose checksum is not in ``keep``; nothing else that lies there."""
    wanted = {sha256.lower() for sha256 in keep}
    for name in os.listdir(cache_dir):
        if re.match(r"[0-9a-f]{64}\Z", name) and name not in wanted:
            shutil.rmtree(os.path.join(cache_dir, name), ignore_errors=True)


def _make_folder(path):
    os.makedirs(path, 0o700, exist_ok=True)
    _journal.sync_folder(os.path.dirname(path))


def _take(src, path, sha256, note):
    """Bring a file of this node into the cache: by a link where that is possible, since it may have several GB."""
    _runfile.check_file(src, os.path.basename(path))
    # Not .part: a download would go on writing into the depot's file.
    link = path + ".link"
    _remove(link)
    try:
        os.link(os.path.realpath(src), link)
    except OSError:
        # Another file system, or one without links.
        _copy(src, path, sha256, note)
        return
    note("fetched")
    try:
        _runfile.check(link, os.path.basename(path), sha256)
    except FleetError:
        _remove(link)
        raise
    # The link shares mode and owner with the depot's file: they stay as they are.
    _settle(link, path, sha256, note)


def _copy(src, path, sha256, note):
    part = path + ".part"
    _remove(part)
    try:
        with open(src, "rb") as source:
            _room(part, os.fstat(source.fileno()).st_size)
            found = _copy_bytes(source, part)
    except OSError as error:
        raise _failed(src if error.errno in (errno.ENOENT, errno.EACCES) else part, error.strerror) from error
    note("fetched")
    try:
        _runfile.check(part, os.path.basename(path), sha256, found)
    except FleetError:
        _remove(part)
        raise
    os.chmod(part, 0o700)
    _settle(part, path, sha256, note)


def _copy_bytes(source, path):
    """Copy an open file to ``path`` and onto the disk; return the sha256 of what was written."""
    digest = hashlib.sha256()
    with open(path, "wb") as target:
        for block in iter(lambda: source.read(_BLOCK), b""):
            digest.update(block)
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _settle(part, path, sha256, note):
    """Give a checked file its name. Its bytes are on disk before, its name before the note that vouches for it."""
    os.rename(part, path)
    _journal.sync_folder(os.path.dirname(path))
    _note(path, sha256)
    note("verified")


def _note_path(path):
    return path + ".checked"


def _stamp(path):
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _note(path, sha256):
    """Remember that this very file was hashed: several GB are not read again on every run."""
    _journal.write_whole(_note_path(path), json.dumps({"sha256": sha256.lower(), "stamp": _stamp(path)}))


def _known_good(path, sha256):
    try:
        with open(_note_path(path)) as stream:
            note = json.load(stream)
        return note == {"sha256": sha256.lower(), "stamp": _stamp(path)}
    except (OSError, ValueError):
        return False


def _download(sources, path, sha256, deadline, note):
    """Receive from the first source that has the right file; what one has sent is the beginning for the next."""
    for number, src in enumerate(sources):
        try:
            _download_from(src, path, sha256, deadline, note)
            return
        except FleetError as error:
            # A full disk here is no better with another server.
            if number + 1 == len(sources) or error.code not in _ANOTHER_MAY_HELP:
                raise


def _download_from(src, path, sha256, deadline, note):
    part = path + ".part"
    name = os.path.basename(path)
    resumed = _size(part) > 0
    _receive_all(src, part, deadline)
    note("fetched")
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
    _settle(part, path, sha256, note)


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


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A server may send to another place, but to no other protocol than HTTP, and not from an encrypted one to a plain one."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # noqa: PLR0917  # urllib's own signature
        scheme = newurl.partition(":")[0].lower()
        if scheme != "https" and (scheme != "http" or req.type == "https"):
            raise urllib.error.HTTPError(req.full_url, code, "and sends to a %s address, which is not followed" % scheme, headers, fp)
        return super(_Redirects, self).redirect_request(req, fp, code, msg, headers, newurl)


def _request(src):
    check_url(src)
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
    return request, urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _Redirects())


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
