"""The side socket: memory, listeners and channels from the host, and the news that it is gone."""

import array
import logging
import mmap
import os
import socket
import threading

from . import v1
from .errors import Error

_log = logging.getLogger("mooncake_plugin")

PACKET = 64 << 10
DESCRIPTORS = 16


class Side:
    """What came over the side socket. Its thread ends the process when the host is gone."""

    def __init__(self, fd):
        self.segments = {}  # id: mmap
        self.listeners = {}  # name: listening socket
        self.channels = {}  # name: connected SOCK_SEQPACKET socket
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        os.set_inheritable(fd, False)
        threading.Thread(target=self._serve, name="side", daemon=True).start()

    def _serve(self):
        while True:
            try:
                packet, fds = self._receive()
            except OSError as e:
                _log.error("side socket: %s", e)
                os._exit(1)
            if not packet:
                os._exit(0)  # the host is gone; nobody is left to serve
            request = v1.SideRequest.FromString(packet)
            response = v1.SideResponse(id=request.id)
            try:
                self._handle(request, fds)
            except Error as e:
                response.error.CopyFrom(e.message())
            except Exception as e:
                response.error.CopyFrom(v1.Error(code=v1.ERROR_CODE_INTERNAL, message=f"{type(e).__name__}: {e}"))
            for fd in fds:  # those that nobody took
                os.close(fd)
            self._socket.send(response.SerializeToString())

    def _receive(self):
        packet, control, _, _ = self._socket.recvmsg(
            PACKET, socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
        )
        fds = array.array("i")
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return packet, list(fds)

    def _handle(self, request, fds):
        what = request.WhichOneof("what")
        if what == "drop":
            segment = self.segments.pop(request.drop.segment_id, None)
            if segment is not None:
                segment.close()
            return
        if what is None or len(fds) != 1:
            raise Error(v1.ERROR_CODE_INTERNAL, f"cannot take {what} with {len(fds)} descriptors")
        if what == "give":
            access = mmap.ACCESS_WRITE if request.give.writable else mmap.ACCESS_READ
            self.segments[request.give.segment_id] = mmap.mmap(fds[0], request.give.length, access=access)
            return  # the mapping has a descriptor of its own
        name = getattr(request, what).name
        known = {"listener": self.listeners, "channel": self.channels}.get(what)
        if known is None:
            raise Error(v1.ERROR_CODE_INTERNAL, f"cannot take {what}")
        known[name] = socket.socket(fileno=fds.pop())
        known[name].setblocking(True)  # the host may have made it otherwise
