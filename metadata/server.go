package metadata

import (
	"fmt"
	"strings"
)

// P2P is the value of Mooncake's metadata_server that means: no metadata service, peers are asked
// directly. It must match exactly, as upstream's engines compare it.
const P2P = "P2PHANDSHAKE"

// Server splits a value of Mooncake's key metadata_server into the type of backend, to be resolved in
// [Kind], and the value of that backend's config key "url". For [P2P] it returns P2P and "".
//
// Upstream's rule (transfer_metadata_plugin.cpp, parseConnectionString): the scheme ends at the first
// "://"; without one the whole string is a list of etcd endpoints. Schemes are matched here in any letter
// case. Strings that upstream would silently take for an etcd host are errors when they are obviously
// something else.
func Server(conn string) (typ, url string, err error) {
	if conn == P2P {
		return P2P, "", nil
	}
	trimmed := strings.TrimSpace(conn)
	if trimmed == "" {
		return "", "", fmt.Errorf("metadata_server is empty; write %s, etcd://host:2379, redis://host:6379 or http://host:8080/metadata", P2P)
	}
	if strings.EqualFold(trimmed, P2P) {
		return "", "", fmt.Errorf("metadata_server: %q - did you mean %s?", conn, P2P)
	}
	scheme, rest, ok := strings.Cut(trimmed, "://")
	if !ok {
		return "etcd", trimmed, nil
	}
	if scheme == "" || rest == "" && !strings.EqualFold(scheme, "memory") {
		return "", "", fmt.Errorf("metadata_server: %q has no %s; write for example etcd://host:2379", conn, missingPart(scheme))
	}
	typ = strings.ToLower(scheme)
	if typ == "rediss" { // redis over TLS, which the backend sees in the url
		typ = "redis"
	}
	return typ, trimmed, nil
}

func missingPart(scheme string) string {
	if scheme == "" {
		return "scheme before ://"
	}
	return "address after ://"
}
