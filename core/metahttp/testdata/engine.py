"""A wheel engine: engine.py NAME METADATA_URL. Prints the code of initialize and, if that is 0, the port of
its handshake daemon; ends cleanly at end of input."""
import sys

from mooncake.engine import TransferEngine

engine = TransferEngine()
rc = engine.initialize(sys.argv[1], sys.argv[2], "tcp", "")
print(rc, 0 if rc else engine.get_rpc_port(), flush=True)
sys.stdin.read()
del engine
