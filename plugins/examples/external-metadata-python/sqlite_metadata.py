"""A metadata backend that keeps its keys in an SQLite file, for the nodes of one machine.

Configuration: {"path": "FILE"}, which several nodes may share. It has all abilities of a backend: SQLite gives lists
and transactions; changes have a number, by which watches and versions go; leases are rows that are renewed.
"""

import contextlib
import os
import sqlite3
import threading
import time
import uuid

from mooncake_plugin import Error, serve, v1

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, lease TEXT);
CREATE TABLE IF NOT EXISTS changes (n INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS leases (id TEXT PRIMARY KEY, ends REAL NOT NULL);
CREATE INDEX IF NOT EXISTS leased ON entries (lease) WHERE lease IS NOT NULL;
"""
BUSY = 3.0  # seconds that a call waits for other processes to finish their writes
KEPT = 10_000  # changes that watches can still read; one that is further behind has to list again
LOOK = 0.05  # seconds between two looks of a watch for changes by other processes
SWEEP = 0.3  # seconds between two looks for leases that have ended
MESSAGE = 512 << 10  # bytes of one message of a list, about


class Store:
    """The calls of MetadataService."""

    features = ["list", "commit", "watch", "lease"]

    def configure(self, config, host):
        path = config.pop("path")
        if config or not isinstance(path, str) or not os.path.isabs(path):
            raise ValueError(f'config: want {{"path": "/absolute/file"}}, not also {sorted(config)}')
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self._revoked = {}  # lease id: event
        try:
            self._db = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as e:
            raise Error(v1.ERROR_CODE_UNAVAILABLE, f"sqlite: {path}: {e}") from e
        self._sweep()
        threading.Thread(target=self._sweeper, name="sweeper", daemon=True).start()

    def health(self):
        with self._transaction("DEFERRED") as db:
            db.execute("SELECT count(*) FROM leases").fetchone()

    def Get(self, request, context):
        _key(request.key)
        with self._transaction("DEFERRED") as db:
            row = db.execute("SELECT key, value, version FROM entries WHERE key = ?", (request.key,)).fetchone()
        if row is None:
            raise Error(v1.ERROR_CODE_NOT_FOUND, "the key has no value")
        return v1.GetResponse(entry=_entry(row))

    def Put(self, request, context):
        _key(request.key)
        with self._transaction() as db:
            _put(db, request.key, request.value)
        return v1.PutResponse()

    def Delete(self, request, context):
        _key(request.key)
        with self._transaction() as db:
            _delete(db, request.key)
        return v1.DeleteResponse()

    def List(self, request, context):
        with self._transaction("DEFERRED") as db:
            rows = db.execute(
                "SELECT key, value, version FROM entries WHERE key >= ? AND (? IS NULL OR key < ?) ORDER BY key",
                (request.prefix, _end(request.prefix), _end(request.prefix)),
            ).fetchall()
        entries, size = [], 0
        for row in rows:
            if entries and size + len(row[0]) + len(row[1]) > MESSAGE:
                yield v1.ListResponse(entries=entries)
                entries, size = [], 0
            entries.append(_entry(row))
            size += len(row[0]) + len(row[1]) + 32
        yield v1.ListResponse(entries=entries)

    def Commit(self, request, context):
        keys = {w.key for w in request.writes}
        if len(keys) < len(request.writes):
            raise Error(v1.ERROR_CODE_REFUSED, "a commit names a key twice")
        for key in keys:
            _key(key)
        with self._transaction() as db:
            for w in request.writes:
                if w.HasField("if_version"):
                    row = db.execute("SELECT version FROM entries WHERE key = ?", (w.key,)).fetchone()
                    if w.if_version != ("" if row is None else str(row[0])):
                        raise Error(v1.ERROR_CODE_CONFLICT, "a key has another version; nothing was written")
            for w in request.writes:
                if w.delete:
                    _delete(db, w.key)
                else:
                    _put(db, w.key, w.value)
        return v1.CommitResponse()

    def Watch(self, request, context):
        last = None
        while context.is_active():
            events = []
            with self._transaction("DEFERRED") as db:
                first, newest = db.execute("SELECT min(n), max(n) FROM changes").fetchone()
                if last is None or (first or 0) > last + 1:
                    events.append(v1.WatchEvent(type=v1.WATCH_EVENT_TYPE_RESET))
                elif (newest or 0) > last:
                    for (key,) in db.execute("SELECT key FROM changes WHERE n > ? GROUP BY key ORDER BY max(n)", (last,)).fetchall():
                        if key.startswith(request.prefix):
                            row = db.execute("SELECT key, value, version FROM entries WHERE key = ?", (key,)).fetchone()
                            events.append(_event(key, row))
                last = newest or 0
            if events:
                yield v1.WatchResponse(events=events)
            else:
                with self._changed:
                    self._changed.wait(LOOK)

    def Lease(self, request, context):
        ttl = request.ttl_ms / 1000 or 10.0
        if ttl < 1:
            raise Error(v1.ERROR_CODE_REFUSED, f"a lease of {ttl} s is shorter than 1 s")
        lease, revoked = uuid.uuid4().hex, threading.Event()
        with self._transaction() as db:
            db.execute("INSERT INTO leases VALUES (?, ?)", (lease, time.time() + ttl))
        self._revoked[lease] = revoked
        context.add_callback(revoked.set)  # the host has cancelled: the lease is left to expire
        try:
            yield v1.LeaseResponse(lease_id=lease)
            while not revoked.wait(ttl / 3):
                if not self._renew(lease, ttl):
                    raise Error(v1.ERROR_CODE_LEASE_LOST, "the lease was not renewed in time")
        finally:
            del self._revoked[lease]

    def LeasePut(self, request, context):
        _key(request.key)
        with self._transaction() as db:
            if not db.execute("SELECT 1 FROM leases WHERE id = ? AND ends > ?", (request.lease_id, time.time())).fetchone():
                raise Error(v1.ERROR_CODE_LEASE_LOST, "the lease has ended")
            _put(db, request.key, request.value, request.lease_id)
        return v1.LeasePutResponse()

    def LeaseRevoke(self, request, context):
        with self._transaction() as db:
            _end_lease(db, request.lease_id)
        revoked = self._revoked.get(request.lease_id)
        if revoked:
            revoked.set()
        return v1.LeaseRevokeResponse()

    @contextlib.contextmanager
    def _transaction(self, kind="IMMEDIATE"):
        try:
            with self._lock:
                self._db.execute("BEGIN " + kind)
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
        except sqlite3.Error as e:
            raise Error(v1.ERROR_CODE_UNAVAILABLE, f"sqlite: {e}") from e
        if kind == "IMMEDIATE":
            with self._changed:
                self._changed.notify_all()

    def _renew(self, lease, ttl):
        """Whether the lease lives. A store that is busy is asked again at the next renewal."""
        try:
            with self._transaction() as db:
                now = time.time()
                return db.execute("UPDATE leases SET ends = ? WHERE id = ? AND ends > ?", (now + ttl, lease, now)).rowcount == 1
        except Error:
            return True

    def _sweep(self):
        with self._transaction("DEFERRED") as db:
            ended = db.execute("SELECT id FROM leases WHERE ends <= ?", (time.time(),)).fetchall()
        if ended:
            with self._transaction() as db:
                for (lease,) in ended:
                    _end_lease(db, lease)

    def _sweeper(self):
        while True:
            time.sleep(SWEEP)
            with contextlib.suppress(Error):  # busy: the next time will do
                self._sweep()


def _key(key):
    if not key:
        raise Error(v1.ERROR_CODE_REFUSED, "the key is empty")


def _entry(row):
    return v1.Entry(key=row[0], value=row[1], version=str(row[2]))


def _event(key, row):
    if row is None:
        return v1.WatchEvent(type=v1.WATCH_EVENT_TYPE_DELETE, entry=v1.Entry(key=key))
    return v1.WatchEvent(type=v1.WATCH_EVENT_TYPE_PUT, entry=_entry(row))


def _end(prefix):
    """The first key after those that begin with prefix, or None."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _change(db, key):
    n = db.execute("INSERT INTO changes (key) VALUES (?)", (key,)).lastrowid
    if n % 100 == 0:
        db.execute("DELETE FROM changes WHERE n <= ?", (n - KEPT,))
    return n


def _put(db, key, value, lease=None):
    db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, value, _change(db, key), lease))


def _delete(db, key):
    if db.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount:
        _change(db, key)


def _end_lease(db, lease):
    for (key,) in db.execute("SELECT key FROM entries WHERE lease = ?", (lease,)).fetchall():
        _delete(db, key)
    db.execute("DELETE FROM leases WHERE id = ?", (lease,))


if __name__ == "__main__":
    serve(Store(), name="sqlite", version="1.0")
