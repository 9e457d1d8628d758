package rawte

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// P2P is the connection string of peers that ask each other instead of a metadata service.
const P2P = "P2PHANDSHAKE"

// ErrNoKey is wrapped by GetKey's error when the service answers that the key is absent.
var ErrNoKey = errors.New("no such key")

// GetKey reads one key of a metadata service: http://host:port/path, etcd://host:port or
// redis://host:port.
func GetKey(meta, key string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	v, err := getKey(ctx, meta, key)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", meta, key, err)
	}
	return v, nil
}

func getKey(ctx context.Context, meta, key string) (string, error) {
	switch scheme, rest, _ := strings.Cut(meta, "://"); scheme {
	case "http":
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, meta+"?key="+escape(key), nil)
		if err != nil {
			return "", err
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		switch {
		case err != nil:
			return "", err
		case r.StatusCode == http.StatusNotFound:
			return "", ErrNoKey
		case r.StatusCode != http.StatusOK:
			return "", fmt.Errorf("%s: %s", r.Status, b)
		}
		return string(b), nil
	case "etcd":
		c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(rest, ","), DialTimeout: 5 * time.Second})
		if err != nil {
			return "", err
		}
		defer c.Close()
		r, err := c.Get(ctx, key)
		if err != nil {
			return "", err
		}
		if len(r.Kvs) == 0 {
			return "", ErrNoKey
		}
		return string(r.Kvs[0].Value), nil
	case "redis":
		o, err := redis.ParseURL(meta)
		if err != nil {
			return "", err
		}
		c := redis.NewClient(o)
		defer c.Close()
		v, err := c.Get(ctx, key).Result()
		if errors.Is(err, redis.Nil) {
			return "", ErrNoKey
		}
		return v, err
	}
	return "", fmt.Errorf("no client for this scheme")
}

// escape is libcurl's escaping.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// Find gets the document of a segment the way a peer does: from the peer itself or from the
// metadata service.
func Find(meta, segment string, within time.Duration) (*Desc, error) {
	if meta == P2P {
		return Open(segment, within)
	}
	key := "mooncake/ram/" + segment
	if strings.Contains(segment, "/") {
		key = "mooncake/" + segment
	}
	v, err := GetKey(meta, key, within)
	if err != nil {
		return nil, err
	}
	d := new(Desc)
	if err := json.Unmarshal([]byte(v), d); err != nil {
		return nil, fmt.Errorf("%w in %s", err, v)
	}
	return d, nil
}
