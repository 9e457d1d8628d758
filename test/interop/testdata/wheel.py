"""One engine of the Mooncake wheel, driven by JSON lines on stdin and stdout.

usage: wheel.py NAME METADATA SIZE [PROTOCOL DEVICE]

NAME is the local_hostname, METADATA the connection string (P2PHANDSHAKE, http://..., etcd://...),
SIZE the bytes of memory to register before the first command (0 = none), PROTOCOL tcp or rdma. The first line printed is
{"ready": true, "name": what peers open, "base": address, "port": handshake port}, or
{"ready": false, "rc": code} when the engine refused to start.

Each command is one object with "cmd" and its arguments; each answer is one object. Offsets count
from "base". Patterns are SHAKE-128 streams of a seed, so that both sides can compute any length.
End of input ends the engine cleanly: it withdraws from the metadata service.
"""
import ctypes
import hashlib
import json
import mmap
import sys

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode


class Driver:
    def __init__(self, name, metadata, size, protocol="tcp", device=""):
        self.engine = TransferEngine()
        self.rc = self.engine.initialize(name, metadata, protocol, device)
        if self.rc:
            return
        self.name = name
        self.port = self.engine.get_rpc_port()
        if metadata == "P2PHANDSHAKE":
            self.name = "%s:%d" % (name.rsplit(":", 1)[0] if name.count(":") == 1 else name, self.port)
        self.base = self.size = 0
        if size:
            self.mem = mmap.mmap(-1, size)
            self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.mem))
            self.size = size
            self.rc = self.engine.register_memory(self.base, size)

    # Memory of this process.

    def fill(self, off, len, seed):
        self.mem[off:off + len] = hashlib.shake_128(seed.encode()).digest(len)

    def zero(self, off, len):
        self.mem[off:off + len] = bytes(len)

    def peek(self, off, len):
        return {"hex": self.mem[off:off + len].hex()}

    def sha(self, off, len):
        return {"sha256": hashlib.sha256(memoryview(self.mem)[off:off + len]).hexdigest()}

    # Registration.

    def register(self, addr, len):
        return {"rc": self.engine.register_memory(addr, len)}

    def unregister(self, addr):
        return {"rc": self.engine.unregister_memory(addr)}

    def register_many(self, count, len, step):
        """count further regions of len bytes, step bytes apart, in one call"""
        self.more = mmap.mmap(-1, count * step)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.more))
        addrs = [first + i * step for i in range(count)]
        return {"rc": self.engine.batch_register_memory(addrs, [len] * count), "first": first}

    def unregister_many(self, first, count, step):
        return {"rc": self.engine.batch_unregister_memory([first + i * step for i in range(count)])}

    # Transfers. local is an offset in this process, remote an absolute address of the target.

    def transfer(self, target, write, local, remote, len, notify=None):
        a = (target, self.base + local, remote, len)
        if notify is not None:
            op = TransferOpcode.Write if write else TransferOpcode.Read
            return {"rc": self.engine.transfer_sync(*a, op, TransferNotify(*notify))}
        return {"rc": (self.engine.transfer_sync_write if write else self.engine.transfer_sync_read)(*a)}

    def batch(self, target, write, local, remote, len):
        a = (target, [self.base + o for o in local], remote, len)
        return {"rc": (self.engine.batch_transfer_sync_write if write else self.engine.batch_transfer_sync_read)(*a)}

    def submit(self, target, write, local, remote, len):
        op = TransferOpcode.Write if write else TransferOpcode.Read
        id = self.engine.batch_transfer_async(target, [self.base + o for o in local], remote, len, op)
        return {"rc": 0 if id else -1, "batch": id}

    def finish(self, batch):
        return {"rc": self.engine.get_batch_transfer_status([batch])}

    # Peers.

    def first(self, target):
        return {"addr": self.engine.get_first_buffer_address(target)}

    def probe(self, target):
        return {"rc": self.engine.send_probe(target)}

    def notifies(self):
        return {"notifies": [[n.name, n.msg] for n in self.engine.get_notifies()]}


def say(answer):
    print(json.dumps(answer), flush=True)


def main():
    d = Driver(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    if d.rc:
        say({"ready": False, "rc": d.rc})
        return
    say({"ready": True, "name": d.name, "base": d.base, "port": d.port})
    for line in sys.stdin:
        args = json.loads(line)
        try:
            say(getattr(d, args.pop("cmd"))(**args) or {"rc": 0})
        except Exception as e:  # jsoncpp's exceptions reach Python as RuntimeError
            say({"rc": -9999, "error": "%s: %s" % (type(e).__name__, e)})


main()
