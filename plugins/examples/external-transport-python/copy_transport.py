"""A transport that moves bytes between the nodes of one host and user over Unix sockets.

The memory of the node is mapped here; calls say what to move from where to where. On the wire a request is its kind, the
address and the length, and for a write the bytes; the answer is one byte, and for a read the bytes.
"""

import collections
import os
import socket
import struct
import threading
import time

from mooncake_plugin import Error, serve, v1

REQUEST = struct.Struct("<cQQ")  # b"r" or b"w", address, length
OK, REJECTED = b"\0", b"\1"
CONNECTIONS = 2  # to one peer
STALL = 10.0  # seconds without a byte after which a peer is given up


class Copy:
    """The calls of TransportService. One lock guards all that calls and threads share; nobody waits for a peer with it."""

    def configure(self, config, host):
        if config:
            raise ValueError(f"there are no settings, not {sorted(config)}")
        self.host = host
        self.changed = threading.Condition()
        self.regions = {}  # id: Region
        self.peers = {}  # id: Peer
        self.batches = {}  # id: the operations that have not ended
        self.last_peer = 0

    def Start(self, request, context):
        name = f"mooncake-copy-{request.instance}"  # in the abstract namespace; the same after a restart
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + name)
        listener.listen(64)
        self.channel = self.host.channels["transfer"]
        self.sending = threading.Lock()
        _thread(self.accept, listener)
        _thread(self.read)
        path = v1.Path(type="copy", attributes={"socket": name, "host": request.host_id})
        return v1.StartTransportResponse(path=path, must_match=["host"])

    def Register(self, request, context):
        with self.changed:
            for r in request.regions:
                self.regions[r.region_id] = Region(r, self.host.segments[r.segment_id])
        return v1.RegisterResponse()

    def Unregister(self, request, context):
        with self.changed:
            region = self.regions.pop(request.region_id, None)
            if region is not None:
                for line in list(region.lines):
                    line.abort()
                self.stop(lambda op: op.region is region, v1.ERROR_CODE_CLOSED)
                while region.users:
                    if not self.changed.wait(min(context.time_remaining() or 60, 60)) and region.users:
                        raise Error(v1.ERROR_CODE_UNQUIET, "the region is still in use")
        return v1.UnregisterResponse()

    def Dial(self, request, context):
        with self.changed:
            self.last_peer += 1
            peer = Peer(request.path.attributes["socket"])
            self.peers[self.last_peer] = peer
            for _ in range(CONNECTIONS):
                _thread(self.work, peer)
            return v1.DialResponse(peer_id=self.last_peer)

    def Hangup(self, request, context):
        with self.changed:
            peer = self.peers.pop(request.peer_id, None)
            if peer is not None:
                peer.closed = True
                self.stop(lambda op: op.peer is peer, v1.ERROR_CODE_CLOSED)
                self.changed.notify_all()
                while peer.running:
                    self.changed.wait()
        return v1.HangupResponse()

    # --- Operations of this node ---

    def read(self):
        """Takes what the node sends, for the life of the process."""
        while True:
            packet = self.channel.recv(64 << 10)
            if not packet:
                os._exit(0)
            request = v1.TransferRequest.FromString(packet)
            with self.changed:
                if request.cancel_batch_ids:
                    gone = set(request.cancel_batch_ids)
                    self.stop(lambda op: op.batch in gone, v1.ERROR_CODE_CANCELLED)
                peer = self.peers.get(request.peer_id)
                for o in request.operations:
                    self.take(Op(o, request.batch_id, peer, self.regions.get(o.region_id)))
                self.changed.notify_all()

    def take(self, op):
        r = op.region
        self.batches.setdefault(op.batch, set()).add(op)
        if op.peer is None:
            self.end(op, v1.ERROR_CODE_CLOSED, "the peer was hung up")
        elif r is None or op.offset + op.length > r.length:
            self.end(op, v1.ERROR_CODE_NOT_REGISTERED, "no region holds the local range")
        else:
            op.peer.queue.append(op)

    def stop(self, which, code):
        """Ends the operations that which picks: those under way by dropping their connection."""
        for batch in list(self.batches.values()):
            for op in [op for op in batch if which(op)]:
                if op.line is None:
                    op.peer.queue.remove(op)
                    self.end(op, code, "stopped before it began")
                elif not op.stopped:
                    op.stopped = code
                    op.line.abort()

    def end(self, op, code=None, message=""):
        """Reports an operation. Nothing of it is touched after that."""
        batch = self.batches[op.batch]
        batch.discard(op)
        if not batch:
            del self.batches[op.batch]
        error = None if code is None else v1.Error(code=code, message=message)
        packet = v1.TransferResponse(completions=[v1.Completion(operation_id=op.id, error=error)])
        with self.sending:
            self.channel.send(packet.SerializeToString())

    def work(self, peer):
        """Moves what is queued for a peer, one operation after the other over one connection."""
        line = Line()
        while True:
            with self.changed:
                while not peer.queue and not peer.closed:
                    self.changed.wait()
                if not peer.queue:
                    break
                op = peer.queue.popleft()
                op.line = line
                op.region.users += 1
                peer.running += 1
            code, message = self.move(op, line, peer)
            with self.changed:
                op.region.users -= 1
                peer.running -= 1
                if op.stopped:
                    code, message = (op.stopped, "stopped") if code is not None else (None, "")
                    line.close()
                self.end(op, code, message)
                self.changed.notify_all()
        line.close()

    def move(self, op, line, peer):
        """Returns the code and the text of the error, or None and ""."""
        try:
            line.connect(peer.socket)
        except OSError as e:
            line.close()
            return v1.ERROR_CODE_UNREACHABLE, f"{peer.socket}: {e}"
        try:
            if op.stopped:
                return op.stopped, "stopped"
            with op.region.view(op.offset, op.length) as local:
                line.socket.sendall(REQUEST.pack(b"w" if op.write else b"r", op.address, op.length))
                if op.write:
                    line.socket.sendall(local)
                answer = line.receive(1)
                if answer == REJECTED:
                    return v1.ERROR_CODE_REJECTED, f"the peer has no such range at {op.address:#x}"
                if answer != OK:
                    raise ConnectionError(f"answer {answer!r}")
                if not op.write:
                    line.fill(local)
        except TimeoutError:
            line.close()
            return v1.ERROR_CODE_TIMEOUT, f"the peer moved nothing for {STALL} s"
        except OSError as e:
            line.close()
            return v1.ERROR_CODE_INTERRUPTED, str(e)
        return None, ""

    # --- Requests of other nodes ---

    def accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # out of descriptors: others may give some back
                time.sleep(0.05)
                continue
            _thread(self.serve, Line(connection))

    def serve(self, line):
        try:
            if line.user() != os.getuid():
                return
            while True:
                line.socket.settimeout(None)  # an idle connection may be as old as it likes
                kind, address, length = REQUEST.unpack(line.receive(REQUEST.size))
                line.socket.settimeout(STALL)
                with self.changed:
                    region = self.find(address, length, kind == b"w")
                    if region is not None:
                        region.users += 1
                        region.lines.add(line)
                try:
                    self.answer(line, region, kind, address, length)
                finally:
                    if region is not None:
                        with self.changed:
                            region.lines.discard(line)
                            region.users -= 1
                            self.changed.notify_all()
        except OSError:
            pass  # the other side has gone, or an unregistered region was in use: it sees the end of the connection
        finally:
            line.close()

    def answer(self, line, region, kind, address, length):
        if region is None:
            if kind == b"w":
                line.skip(length)
            line.socket.sendall(REJECTED)
            return
        with region.view(address - region.address, length) as data:
            if kind == b"w":
                line.fill(data)
                line.socket.sendall(OK)
            else:
                line.socket.sendall(OK)
                line.socket.sendall(data)

    def find(self, address, length, write):
        """The region that holds the whole range and allows this."""
        for r in self.regions.values():
            if r.address <= address and address + length <= r.address + r.length:
                return r if (r.remote_write if write else r.remote_read) else None
        return None


class Region:
    """Memory of the node. users counts who touches it, lines are the connections of peers among them."""

    def __init__(self, r, memory):
        self.memory, self.offset, self.length, self.address = memory, r.offset, r.length, r.address
        self.remote_read, self.remote_write = r.remote_read, r.remote_write
        self.users, self.lines = 0, set()

    def view(self, offset, length):
        begin = self.offset + offset
        with memoryview(self.memory) as whole:
            return whole[begin : begin + length]


class Op:
    """One operation; line is set once it is under way, stopped to the code with which it is to end early."""

    def __init__(self, o, batch, peer, region):
        self.id, self.batch, self.peer, self.region = o.operation_id, batch, peer, region
        self.write, self.offset, self.length, self.address = o.write, o.offset, o.length, o.remote_address
        self.line, self.stopped = None, 0


class Peer:
    """Another node: what is queued for it, and how many operations are under way."""

    def __init__(self, name):
        self.socket, self.queue, self.running, self.closed = name, collections.deque(), 0, False


class Line:
    """One connection. abort may be called by another thread."""

    def __init__(self, connection=None):
        self.socket = connection

    def connect(self, name):
        if self.socket is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(STALL)
            self.socket = connection
            connection.connect("\0" + name)
            if self.user() != os.getuid():
                raise PermissionError("the peer is another user's")

    def user(self):
        credentials = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", credentials)[1]

    def abort(self):
        connection = self.socket
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # not connected yet, or not any more

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def receive(self, n):
        data = bytearray(n)
        self.fill(data)
        return bytes(data)

    def fill(self, into):
        with memoryview(into) as view:
            got = 0
            while got < len(view):
                with view[got:] as rest:
                    n = self.socket.recv_into(rest)
                if n == 0:
                    raise ConnectionError("the connection has ended")
                got += n

    def skip(self, n):
        while n > 0:
            got = len(self.socket.recv(min(n, 1 << 20)))
            if got == 0:
                raise ConnectionError("the connection has ended")
            n -= got


def _thread(run, *arguments):
    threading.Thread(target=run, args=arguments, daemon=True).start()


if __name__ == "__main__":
    serve(Copy(), name="copy", version="1.0")
