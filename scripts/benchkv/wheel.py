"""The wheel's side of the comparison: a client that lends memory, or one that measures.

    wheel.py lend MASTER BYTES       prints its segment's name when it is mounted, and stays
    wheel.py bench OPTIONS-AS-JSON   prints a result as "mooncake bench kv --json" does
"""
import json
import mmap
import ctypes
import os
import signal
import sys
import time

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the library logs to stdout too
WARM_UP = 0.3  # seconds, as in core/bench


def answer(x):
    print(json.dumps(x), file=answers, flush=True)


def fail(what):
    print(what, file=sys.stderr, flush=True)
    os._exit(1)


def setup(master, segment, buffer):
    store = MooncakeDistributedStore()
    rc = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, buffer, "tcp", "", master)
    if rc != 0:
        fail("setup: %d" % rc)
    return store


def memory(store, size):
    """Registered memory: mapping and address."""
    m = mmap.mmap(-1, size)
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    m[:] = bytes(range(256)) * (size // 256) + bytes(size % 256)  # touched
    if store.register_buffer(at, size) != 0:
        fail("register_buffer")
    return m, at


def bench(o):
    size, batch, objects = o["size"], o["batch"], o["objects"]
    own = o["lend"]
    store = setup(o["master"], own, max(4 * size * batch, 64 << 20))
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname() if own else o["prefer"]
    value = bytes(range(256)) * (size // 256) + bytes(size % 256)
    op = o["op"]
    if op in ("put-from", "get-into"):
        keep, at = memory(store, size * batch)
        places = [at + i * size for i in range(batch)]
    sizes = [size] * batch
    prefix = "mooncake-bench-%d-" % time.time_ns()
    turn = 0

    def next_keys():
        nonlocal turn
        n = range(turn, turn + batch)
        turn += batch
        return [prefix + str(i if op.startswith("put") else i % objects) for i in n]

    def all_of(codes, want):
        for c in codes:
            if c != want:
                fail("%s: code %d" % (op, c))

    def full(b):
        if b is None or len(b) != size:
            fail("%s: nothing was read" % op)

    def whole(b):
        if b is None or b.size() != size:
            fail("%s: nothing was read" % op)

    calls = {
        ("put", False): lambda keys: all_of([store.put(keys[0], value, config)], 0),
        ("put", True): lambda keys: all_of([store.put_batch(keys, [value] * batch, config)], 0),
        ("put-from", False): lambda keys: all_of([store.put_from(keys[0], at, size, config)], 0),
        ("put-from", True): lambda keys: all_of(store.batch_put_from(keys, places, sizes, config), 0),
        ("get", False): lambda keys: full(store.get(keys[0])),
        ("get", True): lambda keys: [full(b) for b in store.get_batch(keys)],
        ("get-buffer", False): lambda keys: whole(store.get_buffer(keys[0])),
        ("get-into", False): lambda keys: all_of([store.get_into(keys[0], at, size)], size),
        ("get-into", True): lambda keys: all_of(store.batch_get_into(keys, places, sizes), size),
    }
    call = calls[op, batch > 1]
    if not op.startswith("put"):
        for i in range(objects):
            all_of([store.put(prefix + str(i), value, config)], 0)
    times, busy, begin, warm = [], 0.0, time.perf_counter(), True
    while busy < o["seconds"]:
        keys = next_keys()
        t = time.perf_counter()
        call(keys)
        t = time.perf_counter() - t
        if op.startswith("put"):
            all_of(store.batch_remove(keys, True), 0)
        if warm:
            warm = time.perf_counter() - begin < WARM_UP
            continue
        times.append(t)
        busy += t
    times.sort()
    answer({"bytes_per_second": len(times) * size * batch / busy,
            "latency_us": {"p50": times[len(times) // 2] * 1e6, "p99": times[len(times) * 99 // 100] * 1e6}})
    store.remove_by_regex("^" + prefix, True)
    store.close()
    os._exit(0)  # the library's threads need no order


def lend(master, size):
    store = setup(master, size, 16 << 20)
    answer(store.get_hostname())
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # the measurement is over, and the master ends too


if __name__ == "__main__":
    if sys.argv[1] == "lend":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        lend(sys.argv[2], int(sys.argv[3]))
    bench(json.loads(sys.argv[2]))
