"""The messages and enums of the plugin protocol, version 1: v1.GetResponse, v1.ERROR_CODE_NOT_FOUND, ...

They are made from protocol.binpb, the compiled protocol, when the module is loaded, so that no generated code has to fit
the installed version of protobuf. What they mean is in the .proto files beside it, or in plugins/proto/v1 of the source.
"""

import os

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_files = descriptor_pb2.FileDescriptorSet()
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "protocol.binpb"), "rb") as f:
    _files.ParseFromString(f.read())

_pool = descriptor_pool.DescriptorPool()
for _f in _files.file:  # a file comes after those that it imports
    _pool.Add(_f)

SERVICES = {}  # by short name: "MetadataService"
for _f in _files.file:
    _d = _pool.FindFileByName(_f.name)
    for _name, _m in _d.message_types_by_name.items():
        globals()[_name] = message_factory.GetMessageClass(_m)
    for _e in _d.enum_types_by_name.values():
        for _v in _e.values:
            globals()[_v.name] = _v.number
    SERVICES.update(_d.services_by_name)
