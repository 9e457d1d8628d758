package handshake

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
)

var (
	// ErrResolve: the host name has no address. Upstream's ERR_DNS (-101).
	ErrResolve = errors.New("host cannot be resolved")
	// ErrConnect: no address of the peer takes a connection. Part of upstream's ERR_SOCKET (-102).
	ErrConnect = errors.New("handshake daemon cannot be reached")
	// ErrNoReply: the connection was made, but no reply of the right type came back in time. The request may
	// have been executed. Part of upstream's ERR_SOCKET (-102).
	ErrNoReply = errors.New("no usable reply of the handshake daemon")
	// ErrMalformed: the reply is not JSON. Upstream's ERR_MALFORMED_JSON (-103).
	ErrMalformed = errors.New("malformed reply of the handshake daemon")
	// ErrRefused: the peer answered with a refusal.
	ErrRefused = errors.New("refused by the peer")
)

// Client calls the daemons of other engines. The zero value has the defaults in parentheses. It keeps no
// connections and may be used concurrently.
type Client struct {
	ConnectTimeout time.Duration // for each address of the peer (5 s)
	ReplyTimeout   time.Duration // from the connection to the end of the reply (60 s, upstream's)
	MaxLength      units.Size    // of a reply (1 MiB)
}

// Call sends one message to the daemon at addr, a peer name as for [SplitName], and returns the body of
// the reply. It resolves the host, tries its addresses in order, IPv4 first, until one takes the
// connection, and closes it right after the reply: upstream's daemon serves nobody else before.
func (c *Client) Call(ctx context.Context, addr string, typ byte, body []byte) ([]byte, error) {
	host, port, _, err := SplitName(addr)
	if err != nil {
		return nil, fmt.Errorf("handshake: %w: %w", ErrResolve, err)
	}
	ips, err := resolve(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("handshake: %s: %w: %w", addr, ErrResolve, err)
	}
	conn, err := c.connect(ctx, ips, port)
	if err != nil {
		return nil, fmt.Errorf("handshake: %s: %w: %w", addr, ErrConnect, err)
	}
	reply, err := c.exchange(ctx, conn, typ, body)
	if err != nil {
		return nil, fmt.Errorf("handshake: %s: %s: %w: %w", addr, typeName(typ), ErrNoReply, err)
	}
	return reply, nil
}

func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if host == "" {
		return nil, errors.New("the host is empty")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	// Most daemons listen on IPv4 only.
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	return ips, nil
}

func (c *Client) connect(ctx context.Context, ips []netip.Addr, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: cmp.Or(c.ConnectTimeout, 5*time.Second)}
	var errs []error
	for _, ip := range ips {
		conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(ip, uint16(port)).String())
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (c *Client) exchange(ctx context.Context, conn net.Conn, typ byte, body []byte) ([]byte, error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(cmp.Or(c.ReplyTimeout, time.Minute)))
	fail := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if errors.Is(err, io.EOF) {
			return errors.New("the connection was closed without a reply")
		}
		return err
	}
	if _, err := conn.Write(AppendFrame(make([]byte, 0, len(body)+10), Frame{Type: typ, Body: body})); err != nil {
		return nil, fail(err)
	}
	f, err := ReadFrame(conn, c.MaxLength)
	if err != nil {
		return nil, fail(err)
	}
	if f.Old || f.Type != typ {
		return nil, fmt.Errorf("%w in the reply", ErrType)
	}
	return f.Body, nil
}

// Probe asks whether the daemon at host:port is alive: nil, or an error that wraps ErrResolve, ErrConnect,
// ErrNoReply or ErrMalformed. host is without brackets.
func (c *Client) Probe(ctx context.Context, host string, port int) error {
	addr := JoinName(host, port)
	reply, err := c.Call(ctx, addr, TypeProbe, []byte("{}"))
	if err != nil {
		return err
	}
	if err := jsoncpp.Valid(reply); err != nil {
		return fmt.Errorf("handshake: %s: %w: %w", addr, ErrMalformed, err)
	}
	return nil
}

// Notify delivers m to the daemon at addr. An error that wraps ErrNoReply leaves open whether m arrived.
func (c *Client) Notify(ctx context.Context, addr string, m Message) error {
	reply, err := c.Call(ctx, addr, TypeNotify, m.Encode())
	if err != nil {
		return err
	}
	r, err := ParseMessage(reply)
	if err != nil {
		return fmt.Errorf("handshake: %s: %w: %w", addr, ErrMalformed, err)
	}
	if r.Text == "" {
		return fmt.Errorf("handshake: %s: notify: %w", addr, ErrRefused)
	}
	return nil
}

// Metadata exchanges segment documents with the daemon at addr: it sends own and returns the peer's, which
// may be "null".
func (c *Client) Metadata(ctx context.Context, addr string, own []byte) ([]byte, error) {
	reply, err := c.Call(ctx, addr, TypeMetadata, own)
	return bytes.TrimSuffix(reply, []byte("\n")), err
}

// Call is Client.Call with the defaults.
func Call(ctx context.Context, addr string, typ byte, body []byte) ([]byte, error) {
	return (&Client{}).Call(ctx, addr, typ, body)
}

// Probe is Client.Probe with the defaults.
func Probe(ctx context.Context, host string, port int) error {
	return (&Client{}).Probe(ctx, host, port)
}
