"""An eviction policy: least recently used. It decides as the built-in policy lru does.

The host calls from one thread at a time. It tells what happens as records of 64 bytes, and asks for victims when room
is needed. A victim that cannot go now comes back as REJECT.
"""

import collections
import struct

from mooncake_plugin import Error, serve, v1

# kind, flags, code, handle, parent, depth, req, matched, added, tenant, size, now_ms, key_hash, segment, group
RECORD = struct.Struct("<BBHIIIIIIIQQQII")
KIND, FLAGS, HANDLE, TENANT, SEGMENT = 0, 1, 3, 9, 13

INSERT, ACCESS, PROBE, REMOVE, REJECT, PIN, UNPIN, GHOST, TICK, RESTORE, RESIZE, CANDIDATE, MOVED = range(1, 14)
SOFT, HARD = 1, 2  # flags: pins
ANY = 0xFFFFFFFF  # tenant
SOFT_PINS = 1  # flag of a question: soft-pinned objects may be named, after all others


class LRU:
    """The calls of EvictionService."""

    def Start(self, request, context):
        self.max = request.max_handles
        self.objects = collections.OrderedDict()  # handle: [tenant, segment, pins], used longest ago first
        return v1.StartPolicyResponse()

    def Apply(self, request, context):
        for event in RECORD.iter_unpack(request.events):
            self.apply(event)
        return v1.ApplyResponse()

    def apply(self, event):
        kind, handle = event[KIND], event[HANDLE]
        if handle > self.max:
            raise Error(v1.ERROR_CODE_BAD_EVENT, f"handle {handle} of {self.max}")
        known = self.objects.get(handle)
        if kind in (INSERT, RESTORE):
            if handle == 0 or known is not None:
                raise Error(v1.ERROR_CODE_BAD_EVENT, f"handle {handle} is put in twice, or is 0")
            self.objects[handle] = [event[TENANT], event[SEGMENT], event[FLAGS] & (SOFT | HARD)]
        elif known is None:
            return  # an event that comes after the object's REMOVE, or names none
        elif kind in (ACCESS, REJECT):
            self.objects.move_to_end(handle)
        elif kind == REMOVE:
            del self.objects[handle]
        elif kind == PIN:
            known[2] = event[FLAGS] & (SOFT | HARD)
        elif kind == UNPIN:
            known[2] = 0
        elif kind == MOVED:
            known[1] = event[SEGMENT]

    def Victims(self, request, context):
        named = []
        for pins in (0, SOFT) if request.flags & SOFT_PINS else (0,):
            for handle, (tenant, segment, pinned) in self.objects.items():
                if len(named) == request.max:
                    break
                if pinned == pins and request.tenant in (ANY, tenant) and (request.segment == 0 or segment in (0, request.segment)):
                    named.append(handle)
        return v1.VictimsResponse(handles=named)


if __name__ == "__main__":
    serve(LRU(), name="lru", version="1.0")
