package store

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// Deadlines for a busy machine; a quick one does not wait for them.
const (
	soon = 60 * time.Second
	late = 3 * time.Minute
)

const newest = "0.3.13.post1"

// upstream tells whether the masters under test are upstream's own (MOONCAKE_STORE_MASTER=wheel).
func upstream(t testing.TB) bool {
	switch v := os.Getenv("MOONCAKE_STORE_MASTER"); v {
	case "", "ours":
		return false
	case "wheel":
		return true
	default:
		t.Fatalf("MOONCAKE_STORE_MASTER=%s: write ours or wheel", v)
		return false
	}
}

// oursOnly skips a test that upstream's master cannot pass.
func oursOnly(t testing.TB, why string) {
	t.Helper()
	if upstream(t) {
		t.Skipf("skipped: upstream's master %s", why)
	}
}

// server is the master under test.
type server struct {
	*testenv.StoreMaster
	pinned string // the listener for 0.3.7; empty for upstream's
}

// startServer runs the master under test. Upstream's is that of version, the only one it serves; ours
// serves all of them, 0.3.7 on a listener of its own because that release cannot be recognised in time.
// Numbers in flags are without units, as older releases want them.
func startServer(t testing.TB, version string, flags ...string) *server {
	t.Helper()
	if upstream(t) {
		return &server{StoreMaster: testenv.StartWheelMaster(t, testenv.StoreWheel(t, version), flags...)}
	}
	pinned := testenv.FreePort(t)
	return &server{
		StoreMaster: testenv.StartMaster(t, append([]string{fmt.Sprintf("--rpc_compat=0.3.7:%d", pinned)}, flags...)...),
		pinned:      fmt.Sprintf("127.0.0.1:%d", pinned),
	}
}

// addr is where clients of a release connect.
func (s *server) addr(version string) string {
	if s.pinned != "" && strings.HasPrefix(version, "0.3.7") {
		return s.pinned
	}
	return s.Addr
}

// segments are the names that the master knows, sorted by itself.
func (s *server) segments() ([]string, error) {
	status, body, err := s.Get("/get_all_segments")
	if err == nil && status != 200 {
		err = fmt.Errorf("/get_all_segments: status %d", status)
	}
	return strings.Fields(body), err
}

// waitSegments waits until the master knows n segments.
func (s *server) waitSegments(t testing.TB, within time.Duration, n int) {
	t.Helper()
	testenv.Eventually(t, within, func() error {
		names, err := s.segments()
		if err == nil && len(names) != n {
			err = fmt.Errorf("segments %q, want %d", names, n)
		}
		return err
	})
}

// TestMasterStarts is about the set-up: each wheel can be imported and its own master serves.
func TestMasterStarts(t *testing.T) {
	for _, v := range testenv.StoreVersions {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			m := testenv.StartWheelMaster(t, testenv.StoreWheel(t, v))
			if status, body, err := m.Get("/get_all_keys"); err != nil || status != 200 || body != "" {
				t.Errorf("keys of a new master: %d %q, %v", status, body, err)
			}
			first := m.PID()
			m.Restart()
			if m.PID() == first {
				t.Error("restart kept the process")
			}
		})
	}
}
