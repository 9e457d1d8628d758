package redis

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

// Config is the section of a redis backend.
type Config struct {
	URL         string        `koanf:"url" doc:"redis://[user:password@]host:port[/db] or rediss:// for TLS, as in metadata_server" secret:"true"`
	Address     string        `koanf:"address" doc:"host:port of the server; port 6379 if left out"`
	Username    string        `koanf:"username" doc:"ACL user" env:"MC_REDIS_USERNAME"`
	Password    string        `koanf:"password" doc:"password" env:"MC_REDIS_PASSWORD" secret:"true"`
	DB          int           `koanf:"db" doc:"number of the database" env:"MC_REDIS_DB_INDEX" range:"0..65535"`
	TLS         remote.TLS    `koanf:"tls" doc:"TLS to redis"`
	DialTimeout time.Duration `koanf:"dial_timeout" doc:"bound for connecting" range:"100ms..1m"`
	Timeout     time.Duration `koanf:"timeout" doc:"bound for one operation with its retries" range:"100ms..5m"`
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
	addr               string // host:port
	username, password string
	db                 int
	secure             bool
}

func (c *Config) resolve() (settings, error) {
	s := settings{username: c.Username, password: c.Password, db: c.DB}
	if c.DB < 0 {
		return s, fmt.Errorf("db: %d is negative", c.DB)
	}
	if c.Address != "" {
		addr, err := parseAddress(c.Address)
		if err != nil {
			return s, fmt.Errorf("address: %w", err)
		}
		s.addr = addr
	}
	if c.URL != "" {
		u, err := parseURL(c.URL)
		if err != nil {
			return s, fmt.Errorf("url: %w", err)
		}
		db := ""
		if c.DB != 0 { // 0 is also "not given"
			db = strconv.Itoa(c.DB)
		}
		if err := errors.Join(
			remote.Differ("address", u.addr, s.addr, false),
			remote.Differ("username", u.username, c.Username, false),
			remote.Differ("password", u.password, c.Password, true),
			remote.Differ("db", u.dbText, db, false),
		); err != nil {
			return s, err
		}
		s.addr, s.secure = u.addr, u.secure
		s.username, s.password = or(u.username, c.Username), or(u.password, c.Password)
		if u.dbText != "" {
			s.db = u.db
		}
	}
	if s.addr == "" {
		return s, errors.New("address: none given; write for example \"10.0.0.1:6379\", or url redis://10.0.0.1:6379")
	}
	if s.username != "" && s.password == "" {
		return s, errors.New("username: given without password; redis would be used as the default user")
	}
	return s, nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func parseAddress(s string) (string, error) {
	const defaultPort = 6379
	if strings.ContainsAny(s, ",;") {
		return "", fmt.Errorf("%q names several servers: Redis Cluster and Sentinel are not supported, name one server", s)
	}
	return remote.Address(s, defaultPort)
}

type parsedURL struct {
	settings
	dbText string // "" if the URL names no database
}

// parseURL reads [redis://|rediss://][[user]:password@]host[:port][/db]. It does not use net/url for the
// whole, whose errors repeat the password.
func parseURL(s string) (parsedURL, error) {
	var out parsedURL
	rest := strings.TrimSpace(s)
	if scheme, after, ok := strings.Cut(rest, "://"); ok {
		switch strings.ToLower(scheme) {
		case "redis":
		case "rediss":
			out.secure = true
		default:
			return out, errors.New("the scheme is neither redis:// nor rediss://")
		}
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
	host, db, _ := strings.Cut(rest, "/")
	var err error
	if out.addr, err = parseAddress(host); err != nil {
		return out, err
	}
	if db == "" {
		return out, nil
	}
	n, err := strconv.ParseUint(db, 10, 16)
	if err != nil {
		return out, fmt.Errorf("%q after the address is not the number of a database", db)
	}
	out.db, out.dbText = int(n), strconv.FormatUint(n, 10)
	return out, nil
}
