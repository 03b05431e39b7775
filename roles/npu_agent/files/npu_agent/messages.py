# SPDX-License-Identifier: GPL-3.0-or-later
"""Message classes of device_plugin.proto and pod_resources.proto, made when this file is imported.

Code from today's compiler refuses the protobuf that old Pythons get, and old code refuses today's. Descriptors have not changed in ten
years, so they are built from the .proto's text, in a pool of their own.
"""

import pkgutil
import re
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTOS = ("device_plugin.proto", "pod_resources.proto")
Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {"string": Field.TYPE_STRING, "bool": Field.TYPE_BOOL, "int32": Field.TYPE_INT32, "int64": Field.TYPE_INT64}
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s*(?:(repeated) )?(map<string, string>|\w+) (\w+) = (\d+);", re.MULTILINE)


def describe(text):
    """The FileDescriptorProto of a .proto's text (the part of the language that ours use)."""
    package = re.findall(r"^package (\w+);", text, re.MULTILINE)[0]
    described = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, body in MESSAGE.findall(text):
        message = described.message_type.add(name=name)
        for repeated, kind, field_name, number in FIELD.findall(body):
            field = message.field.add(name=field_name, number=int(number))
            field.label = Field.LABEL_REPEATED if repeated or kind.startswith("map") else Field.LABEL_OPTIONAL
            if kind in SCALARS:
                field.type = SCALARS[kind]
                continue
            field.type = Field.TYPE_MESSAGE
            inner = f"{name}.{add_map_entry(message, field_name)}" if kind.startswith("map") else kind
            field.type_name = f".{package}.{inner}"
    return described


def add_map_entry(message, field_name):
    """A map is a repeated nested message with this name, as the language guide of protobuf says."""
    entry = message.nested_type.add(name="".join(part.capitalize() for part in field_name.split("_")) + "Entry")
    entry.options.map_entry = True
    for number, key in enumerate(("key", "value"), 1):
        entry.field.add(name=key, number=number, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    return entry.name


def classes(described):
    """{name: message class}; the function for it changed its name and place over the years."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(described.SerializeToString())
    make = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    return {message.name: make(pool.FindMessageTypeByName(f"{described.package}.{message.name}")) for message in described.message_type}


if TYPE_CHECKING:
    def __getattr__(name: str) -> Any:
        """The message classes, for tools that only read this file."""

for proto in PROTOS:
    globals().update(classes(describe((pkgutil.get_data(__package__, proto) or b"").decode("utf-8"))))
