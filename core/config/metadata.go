package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/module"
)

// p2pHandshake is upstream's name for "no metadata service: ask the peer itself".
const p2pHandshake = "P2PHANDSHAKE"

// MetadataTarget says where descriptors are kept.
type MetadataTarget struct {
	// Type is the backend's canonical type, "" for P2PHANDSHAKE.
	Type string
	// Section is the backend's section. If metadata_server was given, its key "url" holds the whole
	// connection string, with the scheme in lower case, default ports filled in and lists with commas.
	Section module.Section
}

// P2P reports that there is no metadata service.
func (m MetadataTarget) P2P() bool { return m.Type == "" }

// storeURL is a connection string that may name several hosts, which net/url does not parse.
type storeURL struct {
	scheme, user string
	hosts        []string
	tail         string // path and query
}

func (u storeURL) String() string {
	return u.scheme + "://" + u.user + strings.Join(u.hosts, ",") + u.tail
}

var defaultPorts = map[string]int{"etcd": 2379, "etcds": 2379, "redis": 6379, "rediss": 6379, "http": 80, "https": 443}

// parseStore checks what follows "scheme://". Errors do not show user or password.
func parseStore(scheme, rest string) (storeURL, error) {
	u := storeURL{scheme: scheme}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		u.user = rest[:i+1]
		if _, err := url.Parse("x://" + u.user + "h"); err != nil || strings.ContainsAny(rest[:i], "@/?# ") {
			return u, errors.New("user or password contain characters that must be written as %XX: / ? # @ % : or a space")
		}
		rest = rest[i+1:]
	}
	var err error
	if strings.HasPrefix(scheme, "etcd") { // a list of endpoints, which may say http:// or https:// each
		u.hosts, err = splitHosts(rest, defaultPorts[scheme])
		return u, err
	}
	hosts := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		hosts, u.tail = rest[:i], rest[i:]
	}
	if u.hosts, err = splitHosts(hosts, defaultPorts[scheme]); err != nil {
		return u, err
	}
	switch {
	case len(u.hosts) > 1:
		return u, fmt.Errorf("%s:// takes one host, got %d", scheme, len(u.hosts))
	case strings.HasPrefix(scheme, "http"): // the base URL is used as it is: no port added
		u.hosts = []string{hosts}
	}
	if _, err := url.Parse("x://h" + u.tail); err != nil || strings.ContainsAny(u.tail, " <>\"") {
		return u, fmt.Errorf("the part %s is not a valid URL path", show(u.tail))
	}
	return u, nil
}

// metadata resolves metadata_server and the section "metadata" into the one backend: its type, and the
// connection string if there is one. It answers false if there is a problem or no backend.
func (l *loading) metadata(root *Root) (typ, url string, ok bool) {
	nested, _ := l.tree[metadataKey].(map[string]any)
	if !l.given("metadata_server") {
		nestedType, ok := l.typeOf(nested, metadataKey)
		if !ok || nestedType == "" {
			return "", "", false
		}
		typ, ok = l.resolve(metadataKey, nestedType, join(metadataKey, "type"))
		return typ, "", ok
	}
	nestedType, _ := nested["type"].(string) // may be left out here: the scheme says it
	u, p2p, ok := l.metadataServer(root)
	if !ok || (p2p && nestedType == "") {
		return "", "", false
	}
	if p2p {
		l.fail("metadata_server", fmt.Sprintf("metadata_server (%s) and metadata.type (%s, %s) differ", p2pHandshake, nestedType, l.origin(join(metadataKey, "type"))))
		return "", "", false
	}
	scheme := u.scheme
	if scheme == "rediss" { // the same backend over TLS
		scheme = "redis"
	}
	if typ, ok = l.resolve(metadataKey, scheme, "metadata_server"); !ok {
		return "", "", false
	}
	if nestedType != "" {
		want, ok := l.resolve(metadataKey, nestedType, join(metadataKey, "type"))
		if !ok {
			return "", "", false
		}
		if want != typ {
			l.fail("metadata_server", fmt.Sprintf("metadata_server (%s) and metadata.type (%s, %s) differ", typ, want, l.origin(join(metadataKey, "type"))))
			return "", "", false
		}
	}
	if !l.sameHosts(nested, u) {
		return "", "", false
	}
	return typ, u.String(), true
}

// sameHosts compares the connection string with the section's own keys for the same thing.
func (l *loading) sameHosts(nested map[string]any, u storeURL) bool {
	for key, port := range map[string]int{"url": 0, "endpoints": defaultPorts[u.scheme], "address": defaultPorts[u.scheme]} {
		v, given := nested[key]
		if !given {
			continue
		}
		path, same := join(metadataKey, key), false
		switch v := v.(type) {
		case string:
			if key == "url" {
				scheme, rest, _ := strings.Cut(v, "://")
				other, err := parseStore(strings.ToLower(scheme), rest)
				same = err != nil || other.String() == u.String() // the backend reports what is wrong with it
			} else {
				hosts, err := splitHosts(v, port)
				same = err != nil || slices.Equal(hosts, u.hosts)
			}
		case []any:
			var all []string
			for _, e := range v {
				if s, ok := e.(string); ok {
					all = append(all, s)
				}
			}
			hosts, err := splitHosts(strings.Join(all, ","), port)
			slices.Sort(hosts)
			same = err != nil || slices.Equal(hosts, slices.Sorted(slices.Values(u.hosts)))
		default:
			same = true // wrongly typed: found when the section is decoded
		}
		if !same {
			l.fail("metadata_server", fmt.Sprintf("metadata_server (%s) and %s (%s) differ", show(u.String()), dotted(path), l.origin(path)))
			return false
		}
	}
	return true
}

// metadataServer parses the flat key. Its forms and the rule "no scheme means etcd" are upstream's.
func (l *loading) metadataServer(root *Root) (u storeURL, p2p, ok bool) {
	const key = "metadata_server"
	s := root.MetadataServer
	fail := func(msg string) (storeURL, bool, bool) {
		l.fail(key, msg)
		return storeURL{}, false, false
	}
	scheme, rest, hasScheme := strings.Cut(s, "://")
	switch {
	case s == p2pHandshake:
		return storeURL{}, true, true
	case s == "":
		return fail("metadata_server is empty; write " + p2pHandshake + ", or an address such as etcd://host:2379")
	case !hasScheme && (strings.EqualFold(s, "p2p") || module.Nearest(s, []string{p2pHandshake}) != ""):
		return fail(fmt.Sprintf("%s - did you mean %s?", show(s), p2pHandshake))
	case s != strings.TrimSpace(s):
		return fail(show(s) + " begins or ends with a space")
	}
	backend := strings.ToLower(root.MetadataBackend)
	if hasScheme {
		scheme = strings.ToLower(scheme)
		if backend != "" && backend != scheme && !(backend == "http" && scheme == "https") {
			l.warn("metadata_backend", fmt.Sprintf("ignored, because metadata_server says %s://", scheme))
		}
	} else {
		scheme, rest = "etcd", s
		if backend != "" {
			scheme = backend
		}
		hint := ""
		if strings.HasSuffix(s, ":8080") && scheme == "etcd" {
			hint = "; an HTTP metadata server is written http://" + s + "/metadata"
		}
		l.warn(key, fmt.Sprintf("%s has no scheme and is taken as %s://%s%s", show(s), scheme, Redact(s), hint))
	}
	if _, known := defaultPorts[scheme]; !known { // a backend that only its own part knows
		if _, ok := l.resolve(metadataKey, scheme, key); !ok {
			return storeURL{}, false, false
		}
		return storeURL{scheme: scheme, tail: rest}, false, true
	}
	u, err := parseStore(scheme, rest)
	if err != nil {
		return fail(err.Error())
	}
	return u, false, true
}
