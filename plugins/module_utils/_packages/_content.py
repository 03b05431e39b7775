# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a ``.run`` file is, by its name and by what is in it, without running it. Private to the collection.

The file is read once: checksum, header and payload in one pass. Name and content must not contradict one another; what the content does
not tell, the name decides. The closed bundles (toolkit, ops, nnal) publish no version.info at a place that is known for certain, so
several places are looked at, and nothing is claimed from files of the parts that a bundle is made of.
"""

import gzip
import hashlib
import io
import os
import re
import tarfile
import zlib

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _names, _runfile, _versions
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import lookup, parse_values

_BLOCK = 1 << 20
# As much is unpacked to find what a payload is; a toolkit has several GB.
_UNPACKED = 512 << 20
_TEXT = 64 << 10
# As many members are looked at.
_MEMBERS = 200 * 1000
# Headers with a text of their own (long names, attributes) are read into memory whole by tarfile, however long they say they are.
_LONG_HEADERS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LONGEST_HEADER = 1 << 20

# Labels: public transcripts ("Ascend packages" fact sheet, 1.1). CANN's says nothing of the part.
_LABELS = (
    (re.compile(r"DRIVER", re.IGNORECASE), "driver"), (re.compile(r"FIRMWARE", re.IGNORECASE), "firmware"),
    (re.compile(r"DOCKER.RUNTIME", re.IGNORECASE), "docker_runtime"),
)
_CHIPS = r"(310p|310b|910b|910_93|910|950)"
_LABEL_CHIP = re.compile(r"HDK-(310P|310B|910B|910|A3|A5|950)-", re.IGNORECASE)
# Where the parts that are installed keep them (driver package, measured 4; CANN packages, measured 1).
_VERSION_FILES = {
    "driver": r"(?:driver/)?version\.info\Z",
    "firmware": r"(?:firmware/)?version\.info\Z",
    "cann_toolkit": r"(?:(?:ascend-)?toolkit/|(?:files/)?share/info/(?:ascend-)?toolkit/)?version\.info\Z",
    "cann_kernels": r"(?:(?:opp_kernel|ops|kernels)/|(?:files/)?(?:opp_kernel|share/info/(?:ops|opp_kernel))/)?version\.info\Z",
    "cann_nnrt": r"(?:nnrt/|(?:files/)?share/info/nnrt/)?version\.info\Z",
    "nnal": r"(?:atb/|nnal/)?version\.info\Z",
    "docker_runtime": r"version\.info\Z",
}
_SCENE = re.compile(r"(?:.*/)?scene\.info\Z")
_KERNELS = re.compile(r"(?:.*/)?(?:kernel|kernel/config|opp_kernel/built-in)/ascend%s(?:/|\Z)" % _CHIPS, re.IGNORECASE)
_MARKS = (
    (re.compile(r"driver/version\.info\Z"), "driver"), (re.compile(r"firmware/version\.info\Z"), "firmware"),
    (re.compile(r"(?:.*/)?ascend-docker-runtime\Z"), "docker_runtime"),
)
# The chip in the names of operators -> family.
_KERNEL_FAMILY = dict(_names.CHIP_FAMILY, **{"910_93": "a3"})


try:
    import bz2
    import lzma
except ImportError:
    # A Python may be built without them; what they pack is not looked into then.
    bz2 = lzma = None  # type: ignore[assignment]

_DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, RecursionError) + ((lzma.LZMAError,) if lzma else ())


_ReadError, _SPARSE = tarfile.ReadError, tarfile.GNUTYPE_SPARSE


class _Member(tarfile.TarInfo):
    """A member whose header takes no more memory than one of a package needs."""

    def _proc_member(self, tarfile):  # the standard library's name for it, which is an archive
        if self.type in _LONG_HEADERS and self.size > _LONGEST_HEADER:
            raise _ReadError("a header of %d bytes" % self.size)
        if self.type == _SPARSE:
            raise _ReadError("a sparse file")
        return super(_Member, self)._proc_member(tarfile)  # type: ignore[misc]

    def _proc_gnusparse_10(self, *_args):
        # Its map stands in the data and may be as long as that.
        raise tarfile.ReadError("a sparse file")


def describe(path):
    """Return what the file at ``path`` is; raise FleetError where it is none, damaged, or not what its name says."""
    try:
        with open(path, "rb") as stream:
            return describe_stream(stream, os.path.basename(path), os.fstat(stream.fileno()).st_size)
    except OSError as error:
        message = "The package %s can not be read: %s." % (path, error.strerror or error)
        raise FleetError(message, "package_missing", "scan", object=path, hint="`ls -l %s`" % path) from error


def describe_stream(stream, name, size):
    """The same for a file that only can be read from its beginning; ``size`` None is found by reading."""
    said = _names.parse(name)
    head = _read(stream, _runfile.HEAD)
    if size is not None:
        _runfile.check_header(head, size, name)
    values = _runfile.header_values(head)
    longest = _runfile.declared_size(head) or size
    if longest is None:
        raise _damaged(name, "neither its header nor the server say how long it is")
    source = _Source(stream, head, _payload_offset(head, values), longest)
    content = _look_into(source, said["component"], values.get("label", ""))
    source.finish()
    if size is None or source.size > longest:
        _runfile.check_header(head, source.size, name)
    elif source.size != size:
        raise _damaged(name, "it has %d bytes, announced were %d" % (source.size, size))
    if values.get("sha") and source.payload_sha256 != values["sha"]:
        raise _damaged(name, "its payload has sha256 %s, its header says %s" % (source.payload_sha256, values["sha"]))
    if content["damaged"]:
        raise _damaged(name, "its payload can not be unpacked (%s)" % content["damaged"])
    _compare(name, said, content)
    return {
        "file": name,
        "component": said["component"],
        "version": said["version"],
        "family": said["family"] or None,
        "arch": said["arch"] or (content["arch"] if said["component"] == "driver" else None),
        "size": source.size,
        "sha256": source.sha256,
        "content": {key: content[key] for key in ("component", "version", "release", "family", "arch", "compression")},
    }


def _read(stream, size):
    parts = []
    while size > 0:
        part = stream.read(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _payload_offset(head, values):
    lines = int(values.get("skip") or 0)
    return sum(len(line) for line in head.splitlines(True)[:lines]) if lines else None


class _Source(io.RawIOBase):
    """The payload as a file, while all that passes is hashed: the whole and, for the header's own checksum, the payload."""

    def __init__(self, stream, head, offset, longest):
        super(_Source, self).__init__()
        self._stream, self._longest = stream, longest
        self._all, self._payload = hashlib.sha256(head), hashlib.sha256()
        self._left = head[offset:] if offset is not None else b""
        self._payload.update(self._left)
        self.has_payload = offset is not None
        self.size = len(head)

    def read(self, size=-1):
        if self._left:
            part, self._left = self._left[:size], self._left[size:]
            return part
        return self._next(size)

    def peek(self, size):
        """Return the next bytes, which the next read returns again."""
        while len(self._left) < size:
            part = self._next(size - len(self._left))
            if not part:
                break
            self._left += part
        return self._left[:size]

    def _next(self, size):
        if self.size > self._longest:
            # A server that never stops sending.
            return b""
        part = self._stream.read(size)
        self._all.update(part)
        self._payload.update(part)
        self.size += len(part)
        return part

    def finish(self):
        self._left = b""
        while self._next(_BLOCK):
            pass

    @property
    def sha256(self):
        return self._all.hexdigest()

    @property
    def payload_sha256(self):
        return self._payload.hexdigest()


def _compression(start):
    for magic, name in ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")):
        if start.startswith(magic):
            return name
    return "none" if start[257:262] == b"ustar" else "unknown"


def _look_into(source, component, label):
    """Return what header and payload tell: component, version, release (of the HDK), family, arch; None for what they do not."""
    chip = _LABEL_CHIP.search(label)
    found = {
        "component": next((known for pattern, known in _LABELS if pattern.search(label)), None),
        "family": _names.CHIP_FAMILY[chip.group(1).lower()] if chip else None,
        "version": None, "release": None, "arch": None, "compression": "unknown", "damaged": None, "families": set(),
    }
    if not source.has_payload:
        return found
    found["compression"] = _compression(source.peek(512))
    if found["compression"] == "unknown":
        return found
    if found["compression"] in ("bzip2", "xz") and not lzma:
        found["compression"] = "unknown"
        return found
    try:
        with tarfile.open(fileobj=_unpacked(source, found["compression"]), mode="r|", tarinfo=_Member) as archive:
            _look_at_members(archive, component, found)
    except _DAMAGE as error:
        # ValueError and RecursionError are tarfile's on numbers that are none, and on a row of headers without a member.
        found["damaged"] = str(error) or type(error).__name__
    return found


def _unpacked(source, compression):
    """The payload as it was before it was packed. tarfile's own way ("r|*") copies all that one block becomes for each header it reads."""
    if compression == "gzip":
        return gzip.GzipFile(fileobj=source, mode="rb")
    if compression == "bzip2":
        return bz2.BZ2File(source)
    return lzma.LZMAFile(source) if compression == "xz" else source


def _look_at_members(archive, component, found):
    version_file = re.compile(_VERSION_FILES.get(component, r"version\.info\Z"))
    arches, versions = set(), {}
    for _number in range(_MEMBERS):
        member = archive.next()
        # It keeps all that it has seen.
        archive.members = []
        if member is None or member.offset_data + member.size > _UNPACKED:
            break
        name = re.sub(r"\A(?:\./)+", "", member.name)
        _note_marks(name, found)
        if member.isfile() and member.size <= _TEXT:
            if version_file.match(name):
                versions[name.count("/")] = parse_values(archive.extractfile(member).read().decode("utf-8", "replace"))
            elif _SCENE.match(name):
                arches.add(lookup(parse_values(archive.extractfile(member).read().decode("utf-8", "replace")), "arch"))
    found["arch"] = arches.pop() if len(arches) == 1 else None
    # driver/version.info says more than version.info beside it.
    values = versions[max(versions)] if versions else {}
    found["version"], found["release"] = lookup(values, "Version"), lookup(values, "package_version")


def _note_marks(name, found):
    for pattern, known in _MARKS:
        if pattern.match(name) and not found["component"]:
            found["component"] = known
    kernel = _KERNELS.match(name)
    if kernel:
        found["families"].add(_KERNEL_FAMILY[kernel.group(1).lower()])


def _compare(name, said, content):
    """Raise FleetError where name and content contradict one another."""
    versions = [version for version in (content["version"], content["release"]) if version and _is_version(version)]
    arch = content["arch"] if content["arch"] in ("aarch64", "x86_64") else None
    plain = said["version"].rsplit("_sph", 1)[0]
    wrong = [
        (what, by_name, by_content)
        for what, by_name, by_content, differs in (
            ("component", said["component"], content["component"], content["component"] and content["component"] != said["component"]),
            ("family", said["family"], content["family"], said["family"] and content["family"] not in (None, said["family"])),
            ("family", said["family"], ", ".join(sorted(content["families"])),
             said["component"] == "cann_kernels" and content["families"] and said["family"] not in content["families"]),
            ("architecture", said["arch"], arch, said["arch"] and arch not in (None, said["arch"])),
            # HDK 22.x: the file is named by package_version, version.info's Version is what npu-smi prints.
            ("version", said["version"], " / ".join(versions),
             versions and not any(_versions.same(version, plain) or _versions.same(version, said["version"]) for version in versions)),
        )
        if differs
    ]
    if wrong:
        words = "; ".join("%s is %s by its name and %s by its content" % row for row in wrong)
        message = "%s contradicts itself: %s." % (name, words)
        hint = "It was renamed or swapped. Keep the vendor's file names: copy the package of this name to the depot again."
        raise FleetError(message, "package_contradicts", "scan", object=name, observed=wrong, hint=hint)


def _is_version(text):
    try:
        return bool(_versions.parse(text))
    except FleetError:
        return False


def _damaged(name, reason):
    return FleetError(
        "%s is damaged: %s." % (name, reason), "package_damaged", "scan", object=name, observed=reason, hint=_runfile.COPY_AGAIN % name,
    )
