"""Makes gRPC handlers of an object with the calls of a service."""

import logging

import grpc
from google.protobuf import message_factory

from . import v1
from .errors import Error

_log = logging.getLogger("mooncake_plugin")


def handlers(name, implementation, closed):
    """Handlers for the calls of service name that implementation has. closed() tells that the plugin shuts down."""
    service = v1.SERVICES[name]
    calls = {}
    for method in service.methods:
        call = getattr(implementation, method.name, None)
        if call is None:
            continue  # gRPC answers UNIMPLEMENTED; the host calls only what the features say
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        if method.server_streaming:
            make, wrapped = grpc.unary_stream_rpc_method_handler, _stream(call, response, closed)
        else:
            make, wrapped = grpc.unary_unary_rpc_method_handler, _unary(call, response, closed)
        calls[method.name] = make(wrapped, request.FromString, response.SerializeToString)
    return grpc.method_handlers_generic_handler(service.full_name, calls)


def _unary(call, response, closed):
    def handle(request, context):
        try:
            if closed():
                raise Error(v1.ERROR_CODE_CLOSED, "the plugin is shutting down")
            return call(request, context)
        except Exception as e:  # every exception has to become an answer
            return response(error=_error(e, call))

    return handle


def _stream(call, response, closed):
    def handle(request, context):
        try:
            if closed():
                raise Error(v1.ERROR_CODE_CLOSED, "the plugin is shutting down")
            yield from call(request, context)
        except Exception as e:
            yield response(error=_error(e, call))

    return handle


def _error(e, call):
    if isinstance(e, Error):
        return e.message()
    _log.exception("%s failed", call.__qualname__)
    return v1.Error(code=v1.ERROR_CODE_INTERNAL, message=f"{type(e).__name__}: {e}")
