package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/core/units"
)

// expectation is what a path should give.
type expectation struct {
	rate    float64       // bytes per second; 0 = none
	latency time.Duration // median of a small read; 0 = none
	why     string        // where the figure comes from
}

// Bandwidth below the expectation is a warning, below a quarter of it a failure; latency above the expectation is a
// warning. These shares of a link's speed can be reached with one process and a few threads.
const (
	tcpShare  = 0.5
	rdmaShare = 0.8
	failShare = 0.25
)

// baselineChecks are one check for each transport to measure.
func baselineChecks(s *Setup) []Check {
	if s.Baseline == nil {
		return nil
	}
	var out []Check
	for _, t := range s.Baseline.Transports {
		out = append(out, Check{
			Name: "baseline-" + t, About: "bandwidth and latency to a peer", Alone: true,
			Timeout: 2*s.Baseline.Duration + time.Minute,
			Run:     func(ctx context.Context, h *Host) Result { return h.baseline(ctx, t) },
		})
	}
	return out
}

// baseline measures reads of the peer's memory over one transport.
func (h *Host) baseline(ctx context.Context, transport string) Result {
	var f findings
	b := h.Setup.Baseline
	many, err := b.Measure(ctx, transport, bench.Options{Transport: transport, Op: "read", Block: 256 << 10, Batch: 16, Threads: 2, Duration: b.Duration})
	var one *bench.Result
	if err == nil {
		one, err = b.Measure(ctx, transport, bench.Options{Transport: transport, Op: "read", Block: 4 << 10, Batch: 1, Threads: 1, Duration: b.Duration})
	}
	e := h.expect(transport)
	switch {
	case err != nil && h.elsewhere(transport):
		f.pass("%s: not a path to %s: %v", transport, b.Peer, err)
		return f.result()
	case err != nil:
		level := Fail
		if transport == "verbs" {
			level = h.Setup.RDMA.bad()
		}
		f.note(level, fmt.Sprintf("%s: no transfer: %v", b.Peer, err), "see whether the peer runs and has registered memory (mooncake bench transfer --target "+b.Peer+" --transport "+transport+" --verbose)")
		return f.result()
	case many.Errors+one.Errors > 0:
		f.fail(fmt.Sprintf("%d batches failed, the first: %v", many.Errors+one.Errors, firstError(many, one)), "see the log of the peer")
	}
	rate, latency := many.BytesPerSecond, time.Duration(one.LatencyUS.P50*float64(time.Microsecond))
	seen := fmt.Sprintf("%s: %s, 4 KiB in %v (p50), %.0f us (p99)", b.Peer, rateText(rate), latency.Round(100*time.Nanosecond), one.LatencyUS.P99)
	advice := "compare with iperf3 or ib_read_bw between the same hosts, then look at the warnings above"
	switch {
	case e.rate > 0 && rate < e.rate*failShare:
		f.fail(fmt.Sprintf("%s, expected %s (%s)", seen, rateText(e.rate), e.why), advice)
	case e.rate > 0 && rate < e.rate:
		f.warn(fmt.Sprintf("%s, expected %s (%s)", seen, rateText(e.rate), e.why), advice)
	case e.rate > 0:
		f.pass("%s, expected %s (%s)", seen, rateText(e.rate), e.why)
	default:
		f.pass("%s; no expectation: %s", seen, e.why)
	}
	if e.latency > 0 && latency > e.latency {
		f.warn(fmt.Sprintf("latency %v, expected %v", latency.Round(100*time.Nanosecond), e.latency), "look for power saving (cpupower), a busy host, or a detour of packets")
	}
	return f.result()
}

func firstError(rs ...*bench.Result) error {
	for _, r := range rs {
		if r.FirstError != nil {
			return r.FirstError
		}
	}
	return nil
}

func rateText(bytesPerSecond float64) string {
	return strconv.FormatFloat(bytesPerSecond/1e9, 'f', 2, 64) + " GB/s"
}

// elsewhere reports that a transport need not reach the peer: shared memory ends at the host.
func (h *Host) elsewhere(transport string) bool {
	return transport == "shm" && !h.local(h.Setup.Baseline.Peer)
}

// local reports whether a segment name begins with an address of this machine.
func (h *Host) local(segment string) bool {
	host, _, _, err := handshake.SplitName(segment)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if a.IsLoopback() {
		return true
	}
	own, _ := h.Kernel.Addrs()
	for _, o := range own {
		if o.Unmap() == a.Unmap() {
			return true
		}
	}
	return false
}

// expect is what a transport should give towards the peer: what the user says, else a share of the link's speed.
func (h *Host) expect(transport string) expectation {
	var e expectation
	local := h.local(h.Setup.Baseline.Peer)
	switch {
	case transport == "shm":
		e = expectation{rate: 2e9, latency: 100 * time.Microsecond, why: "memory of one host"}
	case transport == "verbs":
		e = h.expectRDMA()
	case local:
		e = expectation{rate: 0.5e9, latency: 500 * time.Microsecond, why: "loopback"}
	default:
		e = h.expectTCP()
	}
	if v := h.Setup.Baseline.Expect[transport]; v > 0 {
		e.rate, e.why = float64(v), "as asked"
	}
	return e
}

func (h *Host) expectRDMA() expectation {
	fastest := uint64(0)
	soft := false
	for _, p := range h.activePorts() {
		if p.dev.Software() {
			soft = true
			continue
		}
		fastest = max(fastest, p.port.Rate)
	}
	switch {
	case fastest > 0:
		return expectation{float64(fastest) / 8 * rdmaShare, 50 * time.Microsecond, fmt.Sprintf("%.0f%% of %g Gb/s", rdmaShare*100, float64(fastest)/1e9)}
	case soft:
		return expectation{why: "software RDMA is for tests"}
	}
	return expectation{why: "the speed of the ports is not known"}
}

// expectTCP takes the fastest interface that is up: the path of a packet is the kernel's affair, and too high an
// expectation only warns.
func (h *Host) expectTCP() expectation {
	e := expectation{latency: time.Millisecond, why: "the speed of the interfaces is not known; say it with --expect"}
	fastest, name := uint64(0), ""
	for _, n := range h.interfaces() {
		dir := path.Join("sys/class/net", n)
		if state, _ := h.text(path.Join(dir, "operstate")); state != "up" || !h.exists(path.Join(dir, "device")) {
			continue
		}
		if mbit, err := h.number(path.Join(dir, "speed")); err == nil && mbit > fastest && mbit < 1e7 {
			fastest, name = mbit, n
		}
	}
	if fastest == 0 {
		return e
	}
	bits := float64(fastest) * 1e6
	// One connection of one thread ends somewhere near this, whatever the link.
	const most = 2.5e9
	e.rate, e.why = min(bits/8*tcpShare, most), fmt.Sprintf("%.0f%% of %s, %g Gb/s, at most %s", tcpShare*100, name, bits/1e9, rateText(most))
	return e
}

// ParseExpect reads pairs such as "tcp=1GB": bytes per second that a transport should give.
func ParseExpect(pairs []string) (map[string]units.Size, error) {
	out := map[string]units.Size{}
	for _, p := range pairs {
		name, text, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--expect %q: write TRANSPORT=BYTES per second, for example tcp=1GB", p)
		}
		v, err := units.ParseSize(text)
		if err != nil {
			return nil, fmt.Errorf("--expect %q: %w", p, err)
		}
		out[name] = v
	}
	return out, nil
}
