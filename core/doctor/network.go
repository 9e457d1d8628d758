package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/metadata"
)

func machineNetwork() Network {
	return Network{
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		},
		Probe:    handshake.Probe,
		Segments: segmentSizes,
	}
}

// segmentSizes asks the kernel for the segment sizes of a TCP connection, without what options take of each segment.
func segmentSizes(c net.Conn) (agreed, offered int) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0, 0
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, 0
	}
	err = raw.Control(func(fd uintptr) {
		info, ierr := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if ierr != nil {
			return
		}
		const (
			optTimestamps  = 1
			timestampBytes = 12
		)
		agreed, offered = int(info.Snd_mss), int(info.Advmss)
		if info.Options&optTimestamps != 0 {
			agreed += timestampBytes
		}
	})
	if err != nil {
		return 0, 0
	}
	return agreed, offered
}

// slow is a round trip to a service from which a cluster suffers.
const slow = 50 * time.Millisecond

// checkMetadata: the metadata service answers.
func checkMetadata(ctx context.Context, h *Host) Result {
	var f findings
	m := h.Setup.Metadata
	switch {
	case m == nil:
		f.pass("P2PHANDSHAKE: no metadata service, peers are asked directly")
		return f.result()
	case m.Own:
		f.pass("%s: in this node", m.Type)
		return f.result()
	}
	where := m.Type + " " + m.Address
	b, err := m.Open(ctx)
	if err != nil {
		f.fail(fmt.Sprintf("%s: %v", where, err), "correct metadata_server or the section metadata")
		return f.result()
	}
	defer b.Close()
	key := m.Prefix + "ram/doctor-asks-whether-you-are-there"
	begin := time.Now()
	if _, err = b.Get(ctx, key); err == nil || errors.Is(err, metadata.ErrNotFound) {
		begin = time.Now() // the first call connects
		_, err = b.Get(ctx, key)
	}
	took := time.Since(begin)
	switch {
	case err == nil || errors.Is(err, metadata.ErrNotFound):
		if took > slow {
			f.warn(fmt.Sprintf("%s answers in %v", where, took.Round(time.Millisecond)), "each opened segment waits for it: place it nearer, or see what it is busy with")
		} else {
			f.pass("%s answers in %v", where, took.Round(10*time.Microsecond))
		}
	case errors.Is(err, metadata.ErrRefused):
		f.fail(fmt.Sprintf("%s refuses: %v", where, err), "check user, password and certificates of the section metadata")
	default:
		f.fail(fmt.Sprintf("%s does not answer: %v", where, err), "start the service, check the address and the firewall between")
	}
	return f.result()
}

// checkMaster: the Store's master answers and speaks the protocol.
func checkMaster(ctx context.Context, h *Host) Result {
	m := &h.Setup.Master
	if len(m.Addrs) == 0 {
		return Result{}
	}
	var f findings
	if m.Own {
		f.pass("%s: in this node", strings.Join(m.Addrs, ", "))
		return f.result()
	}
	reached := 0
	var failed []string
	for _, a := range m.Addrs {
		begin := time.Now()
		if err := m.Ready(ctx, a); err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", a, err))
			continue
		}
		reached++
		took := time.Since(begin)
		if took > slow {
			f.warn(fmt.Sprintf("%s answers in %v", a, took.Round(time.Millisecond)), "each put and get asks it: place it nearer")
		} else {
			f.pass("%s answers in %v", a, took.Round(10*time.Microsecond))
		}
	}
	const advice = "start the master (mooncake master), check master_server_address and the firewall between"
	switch {
	case reached == 0:
		f.fail("no answer: "+strings.Join(failed, "; "), advice)
	case len(failed) > 0:
		f.warn("no answer: "+strings.Join(failed, "; "), "without standby masters a failure of the first one stops the Store: "+advice)
	}
	return f.result()
}

// maxPeers bounds how many daemons are asked, atOnce how many of them at a time.
const (
	maxPeers = 64
	atOnce   = 16
)

// peer is a handshake daemon to ask.
type peer struct {
	name, host string
	port       int
}

// answer is what a peer did.
type answer struct {
	peer
	err             error
	agreed, offered int // bytes of a segment
}

// checkPeers: the handshake daemons of other engines answer, and packets to them have the size that this machine sends.
func checkPeers(ctx context.Context, h *Host) Result {
	var f findings
	peers, total, err := h.peers(ctx, &f)
	if err != nil {
		return f.result() // the check of the metadata service tells that
	}
	if len(peers) == 0 {
		if f.level == "" && h.Setup.Metadata == nil {
			return Result{} // nobody to ask: P2P mode names no peers
		}
		f.pass("no other engine is registered")
		return f.result()
	}
	answers := make([]answer, len(peers))
	var wg sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i, p := range peers {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			answers[i] = h.ask(ctx, p)
		})
	}
	wg.Wait()
	judgePeers(&f, answers, total)
	return f.result()
}

func judgePeers(f *findings, answers []answer, total int) {
	var lost, old, small []string
	for _, a := range answers {
		switch {
		case errors.Is(a.err, handshake.ErrNoReply):
			old = append(old, a.name)
		case a.err != nil:
			lost = append(lost, fmt.Sprintf("%s: %v", a.name, a.err))
		}
		if a.agreed > 0 && a.agreed < a.offered {
			small = append(small, fmt.Sprintf("%s takes %d bytes a packet, this machine %d", a.name, a.agreed, a.offered))
		}
	}
	few := func(s []string) string {
		const shown = 4
		if len(s) > shown {
			return strings.Join(s[:shown], "; ") + fmt.Sprintf("; and %d more", len(s)-shown)
		}
		return strings.Join(s, "; ")
	}
	seen := fmt.Sprintf("%d of %d peers answer", len(answers)-len(lost)-len(old), len(answers))
	if total > len(answers) {
		seen += fmt.Sprintf(" (the first %d of %d were asked)", len(answers), total)
	}
	switch {
	case len(lost) == len(answers):
		f.fail(seen+": "+few(lost), "check the firewall for transfer.rpc_port_min to rpc_port_max (15000-17000), and whether the peers run")
	case len(lost) > 0:
		f.warn(seen+"; no answer: "+few(lost), "they may have ended without taking their entry away; else check the firewall and transfer.rpc_port_min to rpc_port_max")
	default:
		f.pass("%s", seen)
	}
	if len(old) > 0 {
		f.pass("take the connection but answer no probe, as old engines do: %s", few(old))
	}
	if len(small) > 0 {
		f.warn("MTU differs on the way: "+few(small), "set the same MTU on all nodes and switches (ip link set DEV mtu 9000)")
	}
}

// ask connects to a daemon for the size of packets, and probes it.
func (h *Host) ask(ctx context.Context, p peer) answer {
	a := answer{peer: p}
	addr := net.JoinHostPort(p.host, strconv.Itoa(p.port))
	c, err := h.Network.Dial(ctx, addr)
	if err != nil {
		a.err = err
		return a
	}
	if ip, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil && !ip.Addr().IsLoopback() {
		a.agreed, a.offered = h.Network.Segments(c)
	}
	c.Close()
	a.err = h.Network.Probe(ctx, p.host, p.port)
	return a
}

// peers are the configured ones, and those that the metadata service lists. total counts those left out too. The
// error is of the metadata service.
func (h *Host) peers(ctx context.Context, f *findings) (out []peer, total int, err error) {
	for _, name := range h.Setup.Peers {
		host, port, _, err := handshake.SplitName(name)
		if err != nil {
			f.fail(fmt.Sprintf("%q: %v", name, err), "name a peer as host or host:port")
			continue
		}
		out = append(out, peer{name, host, cmp.Or(port, handshake.DefaultPort)})
	}
	if m := h.Setup.Metadata; m != nil && !m.Own {
		listed, err := h.registered(ctx, f, m)
		if err != nil && len(out) == 0 {
			return nil, 0, err
		}
		out = append(out, listed...)
	}
	slices.SortStableFunc(out, func(a, b peer) int { return cmp.Compare(a.name, b.name) })
	out = slices.CompactFunc(out, func(a, b peer) bool { return a.host == b.host && a.port == b.port })
	return out[:min(len(out), maxPeers)], len(out), nil
}

// registered lists the daemons that a metadata service knows. Services that cannot list (http) know none.
func (h *Host) registered(ctx context.Context, f *findings, m *Metadata) ([]peer, error) {
	b, err := m.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	l, ok := b.(metadata.Lister)
	if !ok {
		f.pass("%s cannot list its segments", m.Type)
		return nil, nil
	}
	prefix := m.Prefix + "rpc_meta/"
	entries, err := l.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	var out []peer
	for _, e := range entries {
		name := strings.TrimPrefix(e.Key, prefix)
		p, err := parseDaemon(name, e.Value)
		if err != nil {
			f.warn(fmt.Sprintf("%.80s: %v", e.Key, err), "remove that entry")
			continue
		}
		out = append(out, p)
	}
	return out, nil
}

// parseDaemon reads an rpc_meta document.
func parseDaemon(name string, doc []byte) (peer, error) {
	var d struct {
		Host string  `json:"ip_or_host_name"`
		Port float64 `json:"rpc_port"`
	}
	if err := json.Unmarshal(doc, &d); err != nil {
		return peer{}, fmt.Errorf("not an rpc_meta document: %w", err)
	}
	if d.Host == "" || d.Port < 1 || d.Port > 65535 || d.Port != float64(int(d.Port)) {
		return peer{}, errors.New("rpc_meta names no host or no port")
	}
	return peer{name, strings.Trim(d.Host, "[]"), int(d.Port)}, nil
}
