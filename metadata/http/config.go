package http

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

// Config is the section of an HTTP backend.
type Config struct {
	URL            string        `koanf:"url" doc:"http(s)://host:port/metadata, as in metadata_server" secret:"true"`
	Timeout        time.Duration `koanf:"timeout" doc:"bound for one request" range:"100ms..5m"`
	ConnectTimeout time.Duration `koanf:"connect_timeout" doc:"bound for connecting" range:"50ms..1m"`
	MaxValue       units.Size    `koanf:"max_value" doc:"largest value to send or accept" range:"1KB..1GB"`
	TLS            remote.TLS    `koanf:"tls" doc:"TLS to an https server"`
}

// defaultConfig has upstream's timeouts.
func defaultConfig() Config {
	return Config{Timeout: 3 * time.Second, ConnectTimeout: 1500 * time.Millisecond, MaxValue: 32 * units.MiB}
}

// Validate implements module.Validator.
func (c *Config) Validate() error {
	_, err := parseURL(c.URL)
	if err == nil && c.TLS.On() && !strings.HasPrefix(strings.ToLower(c.URL), "https://") {
		err = errors.New("tls: given, but url is not https://")
	}
	return errors.Join(err, c.TLS.Validate())
}

// base is a checked URL.
type base struct {
	url   string // what requests are built from
	shown string // without a password
	// defaulted says that /metadata was added.
	defaulted bool
	password  string
}

func parseURL(s string) (base, error) {
	const example = "write for example http://10.0.0.1:8080/metadata"
	s = strings.TrimSpace(s)
	if s == "" {
		return base{}, fmt.Errorf("url: none given; %s", example)
	}
	u, err := url.Parse(s)
	if err != nil {
		if strings.Contains(s, "@") { // the error would repeat the password
			return base{}, fmt.Errorf("url: cannot be read; reserved characters of user and password are written as %%XX; %s", example)
		}
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return base{}, fmt.Errorf("url: %q: %w; %s", s, err, example)
	}
	shown := u.Redacted()
	bad := func(format string, args ...any) (base, error) {
		return base{}, fmt.Errorf("url: %q: %s; %s", shown, fmt.Sprintf(format, args...), example)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("the scheme is neither http:// nor https://")
	case u.Hostname() == "":
		return bad("there is no host")
	case u.Opaque != "":
		return bad("there is no // after the scheme")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(s, "#"):
		return bad("\"?\" and \"#\" cannot be part of it, because ?key= is added")
	}
	if _, err := remote.Address(u.Host, 80); err != nil {
		return bad("%v", err)
	}
	b := base{url: s, shown: shown}
	b.password, _ = u.User.Password()
	if u.Path == "" || u.Path == "/" {
		b.url = strings.TrimSuffix(s, "/") + "/metadata"
		b.shown = strings.TrimSuffix(shown, "/") + "/metadata"
		b.defaulted = true
	}
	return b, nil
}
