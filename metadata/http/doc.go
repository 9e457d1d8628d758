// Package http is a client of Mooncake's HTTP metadata server: the one in mooncake_master, the Python tool
// of the wheel, the Go example, or our own (core/metahttp). It has only the four basic calls, because the
// protocol has no more: entries of dead nodes stay until somebody deletes them, and nodes find out about a
// restarted server by reading their own entries.
//
// Config keys: url ("http://host:8080/metadata" or https://..., used as it is), timeout, connect_timeout,
// max_value, tls (ca, cert, key, server_name, insecure_skip_verify). A URL without a path gets /metadata,
// with a warning: upstream's client would ask for / and get 404. The proxy variables of the environment are
// honoured, as upstream's libcurl does; loopback addresses are never sent to a proxy.
//
// Requests are upstream's (transfer_metadata_plugin.cpp): "?key=" plus the key with everything but
// A-Z a-z 0-9 - . _ ~ as upper-case %XX; 200 is the only success, 404 to GET is "not found". 404 to DELETE is
// success here. The Python server refuses to replace a key that contains "rpc_meta", even by the same
// value; a refused Put whose value is there already is a success. A different value is ErrRefused with the
// server's text, and the caller decides whether to delete the entry first. A server's limit of a body (413;
// 1 MiB in the Python tool) is ErrTooLarge. The C++ server in mooncake_master does not decode keys, so it
// shows them as "mooncake%2Fram%2Fname".
//
// Metrics: none.
package http
