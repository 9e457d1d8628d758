package etcd

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

// Config is the section of an etcd backend.
type Config struct {
	URL         string        `koanf:"url" doc:"etcd://host:2379,host:2379 as in metadata_server; the scheme may be left out" secret:"true"`
	Endpoints   []string      `koanf:"endpoints" doc:"host:port of the cluster's members"`
	Username    string        `koanf:"username" doc:"etcd user"`
	Password    string        `koanf:"password" doc:"password of the etcd user" secret:"true"`
	TLS         remote.TLS    `koanf:"tls" doc:"TLS to etcd"`
	DialTimeout time.Duration `koanf:"dial_timeout" doc:"bound for connecting to one endpoint" range:"100ms..1m"`
	Timeout     time.Duration `koanf:"timeout" doc:"bound for one operation, over all endpoints" range:"100ms..5m"`
	LeaseTTL    time.Duration `koanf:"lease_ttl" doc:"after this time the node's entries vanish when it is dead" range:"1s..1h"`
}

func defaultConfig() Config {
	return Config{DialTimeout: 5 * time.Second, Timeout: 5 * time.Second, LeaseTTL: metadata.DefaultLeaseTTL}
}

// Validate implements module.Validator.
func (c *Config) Validate() error {
	_, err := c.resolve()
	return errors.Join(err, c.TLS.Validate())
}

// settings are a Config with its URL taken apart.
type settings struct {
	endpoints          []string // host:port or https://host:port
	username, password string
	secure             bool // an endpoint says https
}

func (c *Config) resolve() (settings, error) {
	s := settings{username: c.Username, password: c.Password}
	fromKey, err := parseEndpoints(strings.Join(c.Endpoints, ","))
	if err != nil {
		return s, fmt.Errorf("endpoints: %w", err)
	}
	s.endpoints = fromKey
	if c.URL != "" {
		u, err := parseURL(c.URL)
		if err != nil {
			return s, fmt.Errorf("url: %w", err)
		}
		if len(fromKey) > 0 && !slices.Equal(slices.Sorted(slices.Values(fromKey)), slices.Sorted(slices.Values(u.endpoints))) {
			return s, fmt.Errorf("url and endpoints: both are given and they differ: %s and %s",
				strings.Join(u.endpoints, ","), strings.Join(fromKey, ","))
		}
		if err := errors.Join(
			remote.Differ("username", u.username, c.Username, false),
			remote.Differ("password", u.password, c.Password, true),
		); err != nil {
			return s, err
		}
		s.endpoints = u.endpoints
		s.username, s.password = or(u.username, c.Username), or(u.password, c.Password)
	}
	if len(s.endpoints) == 0 {
		return s, errors.New("endpoints: none given; write for example [\"10.0.0.1:2379\"], or url etcd://10.0.0.1:2379")
	}
	if (s.username == "") != (s.password == "") {
		return s, errors.New("username and password belong together; only one is given")
	}
	https := 0
	for _, e := range s.endpoints {
		if strings.HasPrefix(e, "https://") {
			https++
		}
	}
	if https != 0 && https != len(s.endpoints) {
		return s, errors.New("endpoints: some are https and some are not")
	}
	s.secure = https > 0
	return s, nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// parseURL reads [etcd://][user:password@]endpoints[/].
func parseURL(s string) (settings, error) {
	var out settings
	rest := strings.TrimSpace(s)
	if scheme, after, ok := strings.Cut(rest, "://"); ok && strings.EqualFold(scheme, "etcd") {
		rest = after
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		var errUser, errPassword error
		out.username, errUser = url.PathUnescape(user)
		out.password, errPassword = url.PathUnescape(password)
		if errUser != nil || errPassword != nil {
			return out, errors.New("user or password is not written with %XX for reserved characters")
		}
		rest = rest[at+1:]
	}
	var err error
	out.endpoints, err = parseEndpoints(strings.TrimSuffix(rest, "/"))
	if err == nil && len(out.endpoints) == 0 {
		err = errors.New("no endpoint; write for example etcd://10.0.0.1:2379")
	}
	return out, err
}

// parseEndpoints splits a list at "," and ";" as upstream does (etcd_wrapper.go) and checks each element.
// It drops empty elements and repetitions.
func parseEndpoints(list string) ([]string, error) {
	const defaultPort = 2379
	var out []string
	for e := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == ';' }) {
		e = strings.TrimSpace(e)
		if e == "" {
			continue
		}
		prefix := ""
		if scheme, after, ok := strings.Cut(e, "://"); ok {
			switch strings.ToLower(scheme) {
			case "http":
			case "https":
				prefix = "https://"
			default:
				return nil, fmt.Errorf("%q: an endpoint is host:port, http:// or https://, not %s://", e, scheme)
			}
			e = strings.TrimSuffix(after, "/")
		}
		addr, err := remote.Address(e, defaultPort)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, prefix+addr) {
			out = append(out, prefix+addr)
		}
	}
	return out, nil
}
