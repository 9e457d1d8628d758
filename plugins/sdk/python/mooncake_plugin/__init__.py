"""Parts of a Mooncake node in Python, each a process of its own.

A plugin is a class with the calls of one service of the plugin protocol (MetadataService, EvictionService or
TransportService) and one line at the end of the program:

    serve(MyStore(), name="mystore", version="1.0")

A call takes the request and gRPC's context, and returns the response, or yields responses if the protocol streams
them. Requests and responses are the messages of mooncake_plugin.v1. Calls come from several threads at once. To answer
an error, raise Error. The class may have, besides the calls:

    features    the names of features that it has, as the service's comment lists them
    configure   called once, before any other call, with the configuration: a dict
    health      called about once a second; raises Error while something is missing
    shutdown    called once, at the end

Nothing may be printed on stdout: logs go to stderr, best through the module logging, which serve sets up.
"""

from .errors import Error
from .serve import Host, serve

__all__ = ["Error", "Host", "serve"]
