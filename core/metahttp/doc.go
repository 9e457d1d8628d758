// Package metahttp is Mooncake's HTTP metadata server on any metadata backend: wheel engines use it with
// metadata_server = http://host:port/metadata.
//
// It takes what the three servers of upstream take: the one in mooncake_master (C++), the Python tool of the
// wheel and the Go example. Where these differ:
//
//	request                           C++                Python   Go example   here
//	GET, DELETE of an unknown key     404                404      404, 200     404
//	no key parameter                  400                400      empty key    400
//	key in the query                  as it is written   decoded  decoded      decoded
//	PUT of an rpc_meta key, same      200 unchanged      400      200          200 unchanged
//	PUT of an rpc_meta key, other     400                400      200          see below
//	HEAD, POST, PATCH                 404                405      404          405
//	GET /health                       200 OK             404      404          200 OK
//	body                              no limit seen      1 MiB    no limit     max_body (32 MiB), then 413
//
// A key that contains "rpc_meta" says where an engine listens. A PUT of another value means that an engine of
// the same name has started. The holder of the old entry is asked whether it lives, within probe_timeout:
// if it answers, or something accepts the connection and stays silent, the PUT gets 400 with upstream's text
// and the holder; if nothing is there the new entry replaces the old one. An entry that cannot be asked,
// because it is no rpc_meta document, is never replaced; DELETE frees the name. The same host and port in the
// new value means the same listener: replaced without a question. On a backend with commits the decision is
// written only if the entry is still the one that was judged, so several servers can share one store.
//
// Values are stored as they come, without the newline that upstream adds on etcd and redis.
//
// There is no authentication, as upstream has none: listen where only the cluster can reach it.
//
// Metrics: mooncake_metadata_http_requests_total{method,code},
// mooncake_metadata_http_request_duration_seconds, mooncake_metadata_http_probes_total{result}.
package metahttp
