# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Header blocks of HTTP/2 (RFC 7541) for a peer that was told to keep no dynamic table. Private to the collection. Pure."""

# Appendix A, index 1 first.
STATIC = (
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"), (":scheme", "http"),
    (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""), ("accept-encoding", "gzip, deflate"), ("accept-language", ""),
    ("accept-ranges", ""), ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""),
    ("cache-control", ""), ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""), ("expect", ""),
    ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""),
    ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
)

# Appendix B: the bytes by the length of their code. The code is canonical, so that the lengths are enough to make it.
_LENGTHS = (
    (5, "48-50 97 99 101 105 111 115-116"),
    (6, "32 37 45-47 51-57 61 65 95 98 100 102-104 108-110 112 114 117"),
    (7, "58 66-87 89 106-107 113 118-122"),
    (8, "38 42 44 59 88 90"),
    (10, "33-34 40-41 63"),
    (11, "39 43 124"),
    (12, "35 62"),
    (13, "0 36 64 91 93 126"),
    (14, "94 125"),
    (15, "60 96 123"),
    (19, "92 195 208"),
    (20, "128 130-131 162 184 194 224 226"),
    (21, "153 161 167 172 176-177 179 209 216-217 227 229-230"),
    (22, "129 132-134 136 146 154 156 160 163-164 169-170 173 178 181 185-187 189-190 196 198 228 232-233"),
    (23, "1 135 137-141 143 147 149-152 155 157-158 165-166 168 174-175 180 182-183 188 191 197 231 239"),
    (24, "9 142 144-145 148 159 171 206 215 225 236-237"),
    (25, "199 207 234-235"),
    (26, "192-193 200-202 205 210 213 218-219 238 240 242-243 255"),
    (27, "203-204 211-212 214 221-223 241 244-248 250-254"),
    (28, "2-8 11-12 14-21 23-31 127 220 249"),
    (30, "10 13 22 256"),
)
_END = 256
_LONGEST_PADDING = 7


class HpackError(ValueError):
    """A header block that can not be read."""


def encode(headers):
    """Return the block of ``[(name, value)]``, all as literals that are not to be indexed."""
    return b"".join(b"\0" + _plain(name) + _plain(value) for name, value in headers)


def _plain(text):
    data = text.encode("utf-8")
    return _number(len(data), 7) + data


def _number(value, bits):
    limit = (1 << bits) - 1
    if value < limit:
        return bytes(bytearray([value]))
    out = bytearray([limit])
    value -= limit
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    out.append(value)
    return bytes(out)


def decode(block):
    """Return ``{name: value}`` of a header block; a name that comes twice has its last value. HpackError for anything else."""
    headers = {}
    position = 0
    while position < len(block):
        first = bytearray(block[position:position + 1])[0]
        if first & 0x80:
            index, position = _read_number(block, position, 7)
            name, value = _static(index)
            headers[name] = value
        elif first & 0xE0 == 0x20:
            # A new size of a table that we do not keep.
            _size, position = _read_number(block, position, 5)
        else:
            index, position = _read_number(block, position, 6 if first & 0x40 else 4)
            if index:
                name = _static(index)[0]
            else:
                name, position = _read_text(block, position)
            headers[name], position = _read_text(block, position)
    return headers


def _static(index):
    if not 1 <= index <= len(STATIC):
        raise HpackError("header %d is in no table" % index)
    return STATIC[index - 1]


def _read_number(block, position, bits):
    limit = (1 << bits) - 1
    value = _byte(block, position) & limit
    position += 1
    shift = 0
    more = value == limit
    while more:
        byte = _byte(block, position)
        position += 1
        value += (byte & 127) << shift
        shift += 7
        more = byte & 128
        if shift > 28:
            raise HpackError("a number is too large")
    return value, position


def _byte(block, position):
    if position >= len(block):
        raise HpackError("a header breaks off")
    return bytearray(block[position:position + 1])[0]


def _read_text(block, position):
    coded = _byte(block, position) & 0x80
    length, position = _read_number(block, position, 7)
    data = block[position:position + length]
    if len(data) != length:
        raise HpackError("a header breaks off")
    return (huffman(data) if coded else data).decode("utf-8", "replace"), position + length


def _codes():
    """Return ``{(length, code): byte}``."""
    codes = {}
    code = before = 0
    for length, text in _LENGTHS:
        code <<= length - before
        before = length
        for part in text.split():
            first, _dash, last = part.partition("-")
            for symbol in range(int(first), int(last or first) + 1):
                codes[(length, code)] = symbol
                code += 1
    return codes


CODES = _codes()


def huffman(data):
    """Return the bytes behind their Huffman code."""
    out = bytearray()
    code = length = 0
    for byte in bytearray(data):
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            symbol = CODES.get((length, code))
            if symbol == _END or length > 30:
                raise HpackError("a Huffman code that does not exist")
            if symbol is not None:
                out.append(symbol)
                code = length = 0
    # What is left must be the beginning of the end mark: ones only, less than a byte.
    if length > _LONGEST_PADDING or code != (1 << length) - 1:
        raise HpackError("a Huffman code breaks off")
    return bytes(out)
