# SPDX-License-Identifier: GPL-3.0-or-later
"""Protobuf's wire format, as much of it as kubelet's device APIs use, written out here so that a plugin's own messages are checked by
other code. A message is a dict; a schema is {field name: (number, kind)}, kind being "string", "bool", "int", "map" (text to text),
a schema (one message), or a list with one kind (repeated).
"""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(Exception):
    pass


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(schema, message):
    out = bytearray()
    for name, value in message.items():
        number, kind = schema[name]
        if isinstance(kind, list):
            for item in value:
                out += field(number, kind[0], item)
        elif kind == "map":
            for key, item in sorted(value.items()):
                out += field(number, ENTRY, {"key": key, "value": item})
        elif isinstance(kind, dict):
            if value is not None:
                out += field(number, kind, value)
        elif value:
            out += field(number, kind, value)
    return bytes(out)


ENTRY = {"key": (1, "string"), "value": (2, "string")}


def field(number, kind, value):
    if kind in ("bool", "int"):
        return varint(number << 3 | VARINT) + varint(int(value))
    data = encode(kind, value) if isinstance(kind, dict) else value.encode()
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def read_varint(data, at):
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError("a number is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def empty(kind):
    if isinstance(kind, list):
        return []
    return {"map": {}, "string": "", "bool": False, "int": 0}[kind] if isinstance(kind, str) else None


def decode(schema, data):
    message = {name: empty(kind) for name, (_number, kind) in schema.items()}
    by_number = {number: (name, kind) for name, (number, kind) in schema.items()}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            raw, at = read_varint(data, at)
        elif wire == BYTES:
            length, at = read_varint(data, at)
            raw, at = data[at : at + length], at + length
            if at > len(data):
                raise WireError("a field is cut off")
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
            continue
        else:
            raise WireError(f"wire type {wire} is not used by these messages")
        if number in by_number:
            name, kind = by_number[number]
            keep(message, name, kind, wire, raw)
    return message


def keep(message, name, kind, wire, raw):
    if isinstance(kind, list):
        message[name].append(value_of(kind[0], wire, raw))
    elif kind == "map":
        entry = decode(ENTRY, raw)
        message[name][entry["key"]] = entry["value"]
    else:
        message[name] = value_of(kind, wire, raw)


def value_of(kind, wire, raw):
    if (wire == VARINT) != (kind in ("bool", "int")):
        raise WireError(f"a field has wire type {wire}")
    if kind == "bool":
        return bool(raw)
    if kind == "int":
        return raw - (1 << 64) if raw >= 1 << 63 else raw
    return raw.decode() if kind == "string" else decode(kind, raw)
