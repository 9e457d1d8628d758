package verbs

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
	"github.com/mooncake-agent/mooncake/transports/verbs/fake"
)

func TestPortMTU(t *testing.T) {
	m := newMachine(fake.New(), 2, func(i int, s *fake.Spec) {
		s.Port.ActiveMTU = []device.MTU{device.MTUOf(2048), 0}[i]
	})
	if n, err := portMTU(m, "mlx5_0", 1); err != nil || n != 2048 {
		t.Errorf("got %d, %v", n, err)
	}
	if n, err := portMTU(m, "mlx5_1", 1); err == nil {
		t.Errorf("a port that tells none: %d", n)
	}
	if n, err := portMTU(m, "mlx5_0", 7); err == nil {
		t.Errorf("a port that is not there: %d", n)
	}
	if _, err := portMTU(m, "mlx5_9", 1); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a device that is not there: %v", err)
	}
	if c := m.Counts(); c != (fake.Counts{}) {
		t.Errorf("left open: %+v", c)
	}
}
