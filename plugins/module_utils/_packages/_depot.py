# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lies in a depot: a folder here, or an HTTP(S) index. Read only. Private to the collection.

An index is a page of links (autoindex) or a file SHA256SUMS, or both. What is wrong with a file is an entry of the result: an
operator wants to see all of it at once.
"""

import html
import http.client
import os
import re
import tempfile
import urllib.error
import urllib.parse

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _content, _fetch, _names, _runfile, _signature, _versions

SUMS = "SHA256SUMS"
_INDEX_BYTES = 8 << 20
_TIMEOUT = 60
_BLOCK = 1 << 20
# Of a package of which neither the server nor its header say how long it is.
_LARGEST = 64 << 30
_LINK = re.compile(r"""<a\s[^<>]*?\bhref\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""", re.IGNORECASE)
# As sha256sum writes lines, and with --tag.
_SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?([^/]+)\Z")
_TAGGED_SUM = re.compile(r"SHA256 \((?:\./)?([^/]+)\) = ([0-9a-fA-F]{64})\Z")


class Wanted(object):
    """Which packages are looked into; an empty list or mapping wants all. ``versions`` is {component: [version]}."""

    def __init__(self, families=(), arches=(), versions=None):
        self.families, self.arches, self.versions = list(families), list(arches), dict(versions or {})

    def has(self, said):
        if self.families and said["family"] and said["family"] not in self.families:
            return False
        if self.arches and said["arch"] and said["arch"] not in self.arches:
            return False
        if not self.versions:
            return True
        return any(_versions.same(said["version"], version) for version in self.versions.get(said["component"], ()))


def scan(src, wanted, trust, tmpdir=None):
    """Return packages (what they are, with size, sha256, source, signature), problems, and names that were not looked into."""
    place = _Index(src, tmpdir) if _fetch.is_url(src) else _Folder(src)
    names = place.names()
    text = place.text(SUMS) if SUMS in names else ""
    sums = parse_sums(text)
    # No key may be called "skipped": Ansible would take the task for one.
    result = {"packages": [], "problems": [_odd_sum(line) for line in odd_sums(text)], "passed_over": [], "unknown": []}
    for name in sorted(set(names) | set(sums)):
        if not name.lower().endswith((".run", ".zip")):
            continue
        try:
            said = _names.parse(name)
        except FleetError:
            # A name in another encoding is none that JSON could hold.
            result["unknown"].append(name.encode("utf-8", "backslashreplace").decode("utf-8"))
            continue
        if said["format"] != "run" or not wanted.has(said):
            result["passed_over"].append(name)
            continue
        try:
            result["packages"].append(_look(place, name, names, sums.get(name), trust))
        except FleetError as error:
            result["problems"].append(dict(error.as_dict(), file=name))
    return result


def _look(place, name, names, expected, trust):
    signature, crl = _signature.companions(name, names)
    with place.opened(name, on_disk=bool(signature and trust.ca)) as file:
        found = file.describe()
        if expected and expected != found["sha256"]:
            message = "%s has sha256 %s, %s beside it says %s." % (name, found["sha256"], SUMS, expected)
            raise FleetError(message, "checksum_differs", "scan", object=name, observed=found["sha256"], hint=_runfile.COPY_AGAIN % name)
        found["source"] = place.public(name)
        found["signature"] = None
        if signature:
            with place.small(signature) as proof, place.small(crl) as revoked:
                found["signature"] = _signature.check(name, file.path, proof, revoked, trust=trust)
                # Of an index it is a copy with another name.
                found["signature"]["file"] = signature
                if revoked and found["signature"]["crl"]:
                    found["signature"]["crl"] = crl
        return found


def parse_sums(text):
    """Return {file name: sha256} of `sha256sum`'s output, in the lines that are of its form."""
    return {name: digest for name, digest in map(_sum_of, _lines(text)) if name}


def odd_sums(text):
    """Lines about packages of this folder that are of no known form or name another sum than a line before: nothing would be checked."""
    seen, odd = {}, []
    for line in _lines(text):
        name, digest = _sum_of(line)
        if name is None:
            is_odd = "/" not in line and not line.startswith("#") and re.search(r"\.run\b", line, re.IGNORECASE)
        else:
            is_odd = seen.setdefault(name, digest) != digest
        if is_odd:
            odd.append(line)
    return odd


def _lines(text):
    # Windows begins a file with a mark of its own.
    return [line.rstrip("\r") for line in text.lstrip("\ufeff").split("\n")]


def _sum_of(line):
    found = _SUM.match(line)
    if found:
        return found.group(2), found.group(1).lower()
    found = _TAGGED_SUM.match(line)
    return (found.group(1), found.group(2).lower()) if found else (None, None)


def _odd_sum(line):
    message = "%s has a line that cannot be used: %r." % (SUMS, line[:200])
    hint = "Write it again in the depot: `sha256sum *.run > %s`." % SUMS
    return dict(FleetError(message, "sums_invalid", "scan", object=SUMS, observed=line[:200], hint=hint).as_dict(), file=SUMS)


class _File(object):
    """One package, opened: on this machine's disk (``path``), or a stream."""

    def __init__(self, name, path=None, stream=None, size=None):
        self.name, self.path, self._stream, self._size = name, path, stream, size

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._stream is not None:
            self._stream.close()

    def describe(self):
        if self._stream is None:
            try:
                with open(self.path, "rb") as stream:
                    return _content.describe_stream(stream, self.name, os.fstat(stream.fileno()).st_size)
            except OSError as error:
                raise _unreadable(self.path, error.strerror or str(error)) from error
        return _content.describe_stream(self._stream, self.name, self._size)


class _Path(object):
    """A path as a context, as temporary files are."""

    def __init__(self, path):
        self._path = path

    def __enter__(self):
        return self._path

    def __exit__(self, *exception):
        pass


class _Folder(object):
    def __init__(self, path):
        # It becomes the source in a lock, which is read from other places.
        self._path = os.path.abspath(os.path.expanduser(path))

    def names(self):
        try:
            return [name for name in os.listdir(self._path) if self._is_file_or_link(name)]
        except OSError as error:
            raise FleetError(
                "The depot %s can not be listed: %s." % (self._path, error.strerror), "depot_missing", "scan", object=self._path,
                observed=str(error), hint="npu_fleet_depot names the folder; npu_fleet_depot_on says on which machine it is.",
            ) from error

    def _is_file_or_link(self, name):
        path = os.path.join(self._path, name)
        return os.path.isfile(path) or os.path.islink(path)

    def text(self, name):
        try:
            with open(os.path.join(self._path, name), encoding="utf-8", errors="replace") as stream:
                return stream.read(_INDEX_BYTES)
        except OSError as error:
            raise _unreadable(os.path.join(self._path, name), error.strerror) from error

    def opened(self, name, on_disk):
        path = os.path.join(self._path, name)
        if not os.path.lexists(path):
            message = "%s is named in %s and not there." % (name, SUMS)
            raise FleetError(message, "package_missing", "scan", object=path, hint=_runfile.COPY_AGAIN % name)
        if not os.path.isfile(path):
            # A device or a pipe would be read for ever.
            raise _unreadable(path, "it is a link that leads to no file" if os.path.islink(path) else "it is no file")
        if not os.access(path, os.R_OK):
            raise _unreadable(path, "permission denied")
        return _File(name, path)

    def small(self, name):
        return _Path(os.path.join(self._path, name) if name else None)

    def public(self, name):
        return os.path.join(self._path, name)


class _Index(object):
    def __init__(self, url, tmpdir):
        _fetch.check_url(url)
        self._url = url
        self._tmpdir = tmpdir
        self._sums = None

    def names(self):
        """Names in the page of links and in SHA256SUMS; one of the two is enough."""
        failures = []
        names = set()
        try:
            with self._get("") as page:
                names |= parse_index(page.read(_INDEX_BYTES).decode("utf-8", "replace"), self._at(""))
        except FleetError as error:
            failures.append(error)
        try:
            with self._get(SUMS) as page:
                self._sums = page.read(_INDEX_BYTES).decode("utf-8", "replace")
            names |= set(parse_sums(self._sums)) | {SUMS}
        except FleetError as error:
            failures.append(error)
        names -= {SUMS} if self._sums is None else set()
        if len(failures) == 2:
            raise failures[0]
        return sorted(names)

    def text(self, name):
        return self._sums or ""

    def opened(self, name, on_disk):
        response = self._get(name)
        length = response.headers.get("Content-Length")
        size = int(length) if length and length.isdigit() else None
        if on_disk:
            return self._spooled(name, response)
        return _File(name, None, _Readable(response, self.public(name)), size)

    def _spooled(self, name, response):
        """openssl wants the package as a file."""
        kept = tempfile.NamedTemporaryFile(prefix="npu-fleet-", suffix="-" + name, dir=self._tmpdir)
        try:
            source = _Readable(response, self.public(name))
            head = source.read(_runfile.HEAD)
            kept.write(head)
            left = (_runfile.declared_size(head) or _LARGEST) - len(head)
            # One byte more than it should have shows that it is too long.
            while left >= 0:
                block = source.read(min(_BLOCK, left + 1))
                if not block:
                    break
                kept.write(block)
                left -= len(block)
            kept.flush()
            kept.seek(0)
        except OSError as error:
            kept.close()
            raise _unreadable(kept.name, error.strerror or str(error)) from error
        finally:
            response.close()
        return _File(name, kept.name, kept, os.fstat(kept.fileno()).st_size)

    def small(self, name):
        if not name:
            return _Path(None)
        with self._get(name) as response:
            kept = tempfile.NamedTemporaryFile(prefix="npu-fleet-", dir=self._tmpdir)
            kept.write(response.read(_INDEX_BYTES))
            kept.flush()
        return _Named(kept)

    def public(self, name):
        return _fetch.public(self._at(name))

    def _at(self, name):
        parts = urllib.parse.urlsplit(self._url)
        path = parts.path.rstrip("/") + "/" + urllib.parse.quote(name)
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))

    def _get(self, name):
        url = self._at(name)
        request, opener = _fetch._request(url)
        try:
            return opener.open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            reason = "the server answers %d %s" % (error.code, error.reason)
            error.close()
            raise _not_fetched(url, reason) from None
        except (ValueError, http.client.InvalidURL):
            # Their texts have the whole URL.
            raise _not_fetched(url, "the URL, or the one that the server sends to, is not valid") from None
        except (OSError, http.client.HTTPException) as error:
            raise _not_fetched(url, str(getattr(error, "reason", None) or error)) from None


class _Named(object):
    """A temporary file as the context of its path."""

    def __init__(self, kept):
        self._kept = kept

    def __enter__(self):
        return self._kept.name

    def __exit__(self, *exception):
        self._kept.close()


class _Readable(object):
    """An answer whose broken connection is an error of ours."""

    def __init__(self, response, public):
        self._response, self._public = response, public

    def read(self, size):
        try:
            return self._response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise _not_fetched(self._public, str(error)) from None

    def close(self):
        self._response.close()


def parse_index(text, base):
    """Return the names of files of the folder ``base`` that a page of links (autoindex) has."""
    folder = urllib.parse.urlsplit(base)
    names = set()
    for found in _LINK.finditer(text):
        try:
            link = urllib.parse.urlsplit(urllib.parse.urljoin(base, html.unescape(next(filter(None, found.groups()), ""))))
        except ValueError:
            continue
        # Folders, other hosts and the links that sort the table are no files of this folder.
        if (link.scheme, link.netloc.rpartition("@")[2]) != (folder.scheme, folder.netloc.rpartition("@")[2]) or link.query:
            continue
        path, start = urllib.parse.unquote(link.path), urllib.parse.unquote(folder.path)
        name = path[len(start):] if path.startswith(start) else ""
        if name and "/" not in name and not name.startswith("."):
            names.add(name)
    return names


def _unreadable(path, reason):
    return FleetError(
        "%s can not be read: %s." % (path, reason), "package_unreadable", "scan", object=path, observed=reason, hint="`ls -l %s`" % path,
    )


def _not_fetched(url, reason):
    public = _fetch.public(url)
    return FleetError(
        "%s could not be fetched: %s." % (public, reason), "download_failed", "scan", object=public, observed=reason,
        hint="Check npu_fleet_depot: `curl -I %s`." % public,
    )
