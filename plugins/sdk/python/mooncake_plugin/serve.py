"""Runs a plugin: the handshake, the certificates, and the services that every plugin has."""

import base64
import concurrent.futures
import json
import logging
import os
import signal
import sys
import threading

import grpc

from . import v1
from .certificate import self_signed
from .errors import Error
from .handlers import handlers
from .side import Side

COOKIE = ("MOONCAKE_PLUGIN", "5c1e7a84-mooncake-plugin")
PROTOCOL = 1  # version of mooncake.plugin
THREADS = 256  # each stream takes one
STACK = 512 << 10  # bytes for each, so that all of them fit into the memory limit

# Each kind with its service and the calls that it cannot do without.
_KINDS = {
    v1.KIND_TRANSPORT: ("TransportService", ["Start", "Register", "Unregister", "Dial", "Hangup"]),
    v1.KIND_METADATA: ("MetadataService", ["Get", "Put", "Delete"]),
    v1.KIND_EVICTION: ("EvictionService", ["Start", "Apply", "Victims"]),
}
_log = logging.getLogger("mooncake_plugin")


class Host:
    """What the node has told and given; configure gets it as its second argument."""

    def __init__(self, request, side):
        self.instance = request.instance
        self.generation = request.generation
        self.segments = side.segments if side else {}
        self.listeners = side.listeners if side else {}
        self.channels = side.channels if side else {}


def serve(plugin, *, name, version):
    """Serves plugin until the host ends it. It does not return before."""
    if os.environ.get(COOKIE[0]) != COOKIE[1]:
        sys.exit(f"{name} is a plugin of a Mooncake node, which starts it. Try it with: mooncake plugin check {' '.join(sys.argv)}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the node's terminal is the node's affair
    _log_to_host()
    threading.stack_size(STACK)
    kinds = [k for k, (_, calls) in _KINDS.items() if all(hasattr(plugin, c) for c in calls)]
    if len(kinds) != 1:
        needs = "; ".join(f"{service} {', '.join(calls)}" for service, calls in _KINDS.values())
        sys.exit(f"{name}: {type(plugin).__name__} has to have the calls of exactly one kind: {needs}")
    service = _KINDS[kinds[0]][0]
    side = os.environ.get("MOONCAKE_PLUGIN_SIDE_FD")
    base = _Base(plugin, name, version, kinds[0], Side(int(side)) if side else None)

    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(THREADS),
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.bdp_probe", 0),  # no ping with each call to measure a Unix socket
        ],
    )
    server.add_generic_rpc_handlers((
        handlers("BaseService", base, lambda: False),
        handlers(service, plugin, base.stopping.is_set),
        _go_plugin(base.stopping),
    ))
    address, certificate = _listen(server)
    server.start()
    print(f"1|{PROTOCOL}|unix|{address}|grpc|{certificate}", flush=True)
    base.stopping.wait()
    server.stop(grace=1).wait()
    os._exit(0)  # calls that hang must not keep the process


class _Base:
    """BaseService."""

    def __init__(self, plugin, name, version, kind, side):
        self._plugin, self._name, self._version, self._kind, self._side = plugin, name, version, kind, side
        self.stopping = threading.Event()

    def Info(self, request, context):
        return v1.InfoResponse(
            kind=self._kind, name=self._name, version=self._version, features=getattr(self._plugin, "features", [])
        )

    def Configure(self, request, context):
        configure = getattr(self._plugin, "configure", None)
        try:
            config = json.loads(request.config_json or b"{}")
            if configure is not None:
                configure(config, Host(request, self._side))
            elif config:
                raise Error(v1.ERROR_CODE_INVALID_CONFIG, f"{self._name} has no settings")
        except (ValueError, KeyError, TypeError) as e:
            what = f"{e} is missing" if isinstance(e, KeyError) else str(e)
            raise Error(v1.ERROR_CODE_INVALID_CONFIG, what) from e
        return v1.ConfigureResponse()

    def Health(self, request, context):
        health = getattr(self._plugin, "health", None)
        if health is not None:
            try:
                health()
            except Error as e:
                return v1.HealthResponse(problem=e.message())
        return v1.HealthResponse()

    def Shutdown(self, request, context):
        shutdown = getattr(self._plugin, "shutdown", None)
        context.add_callback(self.stopping.set)
        if shutdown is not None:
            shutdown()
        return v1.ShutdownResponse()


def _go_plugin(stopping):
    """What hashicorp/go-plugin asks of every plugin: its controller, and the health of the service "plugin". The two
    messages are so small that they are written out here."""

    def shutdown(request, context):
        context.add_callback(stopping.set)
        return b""

    def check(request, context):
        return b"\x08\x01"  # HealthCheckResponse{status: SERVING}

    calls = {
        "/plugin.GRPCController/Shutdown": grpc.unary_unary_rpc_method_handler(shutdown),
        "/grpc.health.v1.Health/Check": grpc.unary_unary_rpc_method_handler(check),
    }

    class Handlers(grpc.GenericRpcHandler):
        def service(self, call):
            return calls.get(call.method)

    return Handlers()


def _listen(server):
    """Binds a Unix socket with mutual TLS; returns its path and our certificate for the handshake."""
    host = os.environ.get("PLUGIN_CLIENT_CERT")
    if not host:
        sys.exit("PLUGIN_CLIENT_CERT is not set: the host does not prove who it is")
    key, certificate, der = self_signed()
    credentials = grpc.ssl_server_credentials([(key, certificate)], host.encode(), require_client_auth=True)
    path = os.path.join(os.environ.get("PLUGIN_UNIX_SOCKET_DIR") or ".", f"plugin-{os.getpid()}")
    server.add_secure_port("unix:" + path, credentials)
    return path, base64.b64encode(der).decode().rstrip("=")


class _LogFormat(logging.Formatter):
    """Lines that go-plugin takes apart: the node's log then has our levels."""

    def format(self, record):
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        level = record.levelname.lower().replace("warning", "warn").replace("critical", "error")
        line = {"@level": level, "@message": message, "@module": record.name}
        return json.dumps(line)


def _log_to_host():
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogFormat())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
