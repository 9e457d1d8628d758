"""One client of the Store in a process of its own, for tests. Works with every release of the wheel.

    client.py

Each line on stdin is a command, a JSON object {"do": name, ...}; each answer is one JSON object on
stdout. The first line tells which methods and settings this release has. A value is named by its seed
and size: SHAKE128(seed); what was read is answered as its length and SHA-256.
"""
import ctypes
import hashlib
import json
import mmap
import os
import sys
import threading
import time
import traceback

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

try:
    from mooncake.store import SoftPinAction
except ImportError:
    SoftPinAction = None

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the library logs to stdout too

store = MooncakeDistributedStore()
buffers = {}  # name -> (mmap, address)
loads = {}  # name -> Load


def value(seed, size):
    return hashlib.shake_128(seed.encode()).digest(size)


def seen(b):
    """What was read. None and b"" both mean that nothing was."""
    if b is None:
        return {"bytes": 0, "sha": ""}
    return {"bytes": len(b), "sha": hashlib.sha256(b).hexdigest() if len(b) else ""}


def config(c):
    """A ReplicateConfig; an unsupported setting is an error, not silence."""
    r = ReplicateConfig()

    def put(field, v):
        if not hasattr(r, field):
            raise NotImplementedError("ReplicateConfig has no " + field)
        setattr(r, field, v)

    for name, v in (c or {}).items():
        if name == "soft_pin":
            if SoftPinAction is None:
                put("with_soft_pin", v)
            else:
                put("soft_pin_action", SoftPinAction.ENABLE if v else SoftPinAction.PRESERVE)
        elif name == "hard_pin":
            put("with_hard_pin", v)
        elif name == "replicas":
            put("replica_num", v)
        else:  # by its own name: preferred_segment, group_ids, ...
            put(name, v)
    return r


def method(name):
    f = getattr(store, name, None)
    if f is None:
        raise NotImplementedError("no method " + name)
    return f


def with_config(f, args, c):
    """Calls f; the config is left out when there is none, so that the default is tested too."""
    return f(*args, config(c)) if c else f(*args)


def force(c):
    """Trailing force argument of the remove calls, which 0.3.7 and 0.3.8 do not have."""
    return (True,) if c.get("force") else ()


def setup(c):
    args = [c["host"], c.get("metadata", "P2PHANDSHAKE"), c["segment"], c["buffer"], "tcp", "", c["master"]]
    args += c.get("more", [])
    t = time.monotonic()
    rc = store.setup(*args)
    return {"rc": rc, "host": store.get_hostname() if rc == 0 else "", "seconds": time.monotonic() - t}


def setup_dummy(c):
    """A client without segment and engine, served by a mooncake_client on this host."""
    return {"rc": store.setup_dummy(c["pool"], c["buffer"], c["server"])}


def put(c):
    v = value(c["seed"], c["size"])
    how = c.get("how", "put")
    if how.endswith("_parts"):
        n = max(1, len(v) // 3)
        parts = [v[i : i + n] for i in range(0, len(v), n)]
        if c.get("config"):
            return {"rc": method(how)(c["key"], *parts, config=config(c["config"]))}
        return {"rc": method(how)(c["key"], *parts)}
    return {"rc": with_config(method(how), [c["key"], v], c.get("config"))}


def put_batch(c):
    vs = [value(s, n) for s, n in zip(c["seeds"], c["sizes"])]
    return {"rc": with_config(method(c.get("how", "put_batch")), [c["keys"], vs], c.get("config"))}


def get(c):
    if c.get("how") == "get_buffer":
        b = store.get_buffer(c["key"])
        return seen(None if b is None else bytes(memoryview(b)))
    return seen(store.get(c["key"]))


def get_batch(c):
    return {"values": [seen(b) for b in store.get_batch(c["keys"])]}


def register(c):
    m = mmap.mmap(-1, c["size"])
    address = ctypes.addressof(ctypes.c_char.from_buffer(m))
    buffers[c["buffer"]] = (m, address)
    return {"rc": store.register_buffer(address, c["size"])}


def unregister(c):
    return {"rc": store.unregister_buffer(buffers[c["buffer"]][1])}


def put_from(c):
    m, address = buffers[c["buffer"]]
    at = c.get("at", 0)
    if "seed" in c:  # else what was read last
        m[at : at + c["size"]] = value(c["seed"], c["size"])
    return {"rc": with_config(method(c.get("how", "put_from")), [c["key"], address + at, c["size"]], c.get("config"))}


def places(sizes):
    """Each object has its own place in the buffer, page aligned."""
    at, out = 0, []
    for n in sizes:
        out.append(at)
        at += (n + 4095) & ~4095
    return out


def batch_put_from(c):
    m, address = buffers[c["buffer"]]
    at = places(c["sizes"])
    for a, s, n in zip(at, c["seeds"], c["sizes"]):
        m[a : a + n] = value(s, n)
    f = method(c.get("how", "batch_put_from"))
    return {"codes": with_config(f, [c["keys"], [address + a for a in at], c["sizes"]], c.get("config"))}


def get_into(c):
    m, address = buffers[c["buffer"]]
    at = c.get("at", 0)
    m[at : at + c["size"]] = bytes(c["size"])
    rc = store.get_into(c["key"], address + at, c["size"])
    return {"rc": rc, **seen(m[at : at + max(rc, 0)])}


def batch_get_into(c):
    m, address = buffers[c["buffer"]]
    at = places(c["sizes"])
    for a, n in zip(at, c["sizes"]):
        m[a : a + n] = bytes(n)
    codes = store.batch_get_into(c["keys"], [address + a for a in at], c["sizes"])
    return {"codes": codes, "values": [seen(m[a : a + max(rc, 0)]) for a, rc in zip(at, codes)]}


def replicas(c):
    """The memory replicas of an object, by the endpoint and the size of each."""
    out = []
    for r in method("get_replica_desc")(c["key"]):
        b = r.get_memory_descriptor().buffer_descriptor
        out.append({"endpoint": b.transport_endpoint, "bytes": b.size})
    return {"replicas": out}


def number(name, *keys):
    """A command whose method takes the named arguments and answers with a number."""
    return lambda c: {"rc": method(name)(*[c[k] for k in keys], *force(c))}


def numbers(name, *keys):
    return lambda c: {"codes": list(method(name)(*[c[k] for k in keys], *force(c)))}


def close(c):
    t = time.monotonic()
    return {"rc": store.close(), "seconds": time.monotonic() - t}


class Load:
    """A thread that reads or writes without pause and counts what goes wrong."""

    def __init__(self, c):
        self.c, self.ops, self.failed, self.wrong, self.errors = c, 0, 0, 0, []
        self.longest, self.stop = 0.0, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        c, i = self.c, 0
        while not self.stop.is_set():
            t = time.monotonic()
            try:
                what = (self.write if c["kind"] == "write" else self.read)(i)
            except Exception as e:  # a driver's mistake must not look like a quiet load
                what = repr(e)
            self.longest = max(self.longest, time.monotonic() - t)
            i += 1
            self.ops += 1
            if what:
                self.failed += 1
                if len(self.errors) < 20:
                    self.errors.append(what)
            if c.get("pause"):
                time.sleep(c["pause"])

    def read(self, i):
        k, want = self.c["reads"][i % len(self.c["reads"])]
        b = store.get(k)
        if not b:
            return "get %s: nothing" % k
        if hashlib.sha256(b).hexdigest() != want:
            self.wrong += 1
            return "get %s: wrong content, %d bytes" % (k, len(b))

    def write(self, i):
        k = "%s-%d" % (self.c["prefix"], i)
        v = value(k, self.c["size"])
        rc = with_config(store.put, [k, v], self.c.get("config"))
        if rc != 0:
            return "put %s: %d" % (k, rc)
        b = store.get(k)
        if b != v:
            self.wrong += bool(b)
            return "get %s after put: %d bytes" % (k, len(b))
        rc = store.remove(k, *force(self.c)) if self.c.get("force") else 0
        if rc != 0:
            return "remove %s: %d" % (k, rc)

    def answer(self):
        return {"ops": self.ops, "failed": self.failed, "wrong": self.wrong, "errors": self.errors, "longest": self.longest}


def load_start(c):
    loads[c["load"]] = Load(c)
    return {}


def load_status(c):
    return loads[c["load"]].answer()


def load_stop(c):
    l = loads.pop(c["load"])
    l.stop.set()
    l.thread.join()
    return l.answer()


def race(c):
    """Puts one key from many threads at once, each with its own value."""
    n, start, out = c["threads"], threading.Barrier(c["threads"]), [None] * c["threads"]

    def one(i):
        v = value("%s-%d" % (c["seed"], i), c["size"])
        start.wait()
        out[i] = with_config(store.put, [c["key"], v], c.get("config"))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return {"codes": out}


commands = {
    "setup": setup, "setup_dummy": setup_dummy, "put": put, "put_batch": put_batch, "get": get, "get_batch": get_batch, "register": register,
    "unregister": unregister, "put_from": put_from, "batch_put_from": batch_put_from, "get_into": get_into,
    "batch_get_into": batch_get_into, "replicas": replicas, "close": close, "load_start": load_start,
    "load_status": load_status, "load_stop": load_stop, "race": race,
    "is_exist": number("is_exist", "key"), "batch_is_exist": numbers("batch_is_exist", "keys"),
    "get_size": number("get_size", "key"), "remove": number("remove", "key"), "batch_remove": numbers("batch_remove", "keys"),
    "remove_by_regex": number("remove_by_regex", "pattern"), "remove_all": number("remove_all"),
    "health_check": number("health_check"),
}

print(json.dumps({"ready": True, "methods": [m for m in dir(store) if not m.startswith("_")],
                  "config": [f for f in dir(ReplicateConfig) if not f.startswith("_")]}), file=answers, flush=True)
for line in sys.stdin:
    c = json.loads(line)
    try:
        answer = commands[c["do"]](c)
    except NotImplementedError as e:
        answer = {"missing": str(e)}
    except Exception:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), file=answers, flush=True)
os._exit(0)  # without close(): the master forgets the segment after client_ttl
