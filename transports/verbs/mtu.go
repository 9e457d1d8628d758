package verbs

import (
	"errors"
	"fmt"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
	"github.com/mooncake-agent/mooncake/transports/verbs/ibv"
)

// PortMTU asks a device for the active MTU of a port in bytes: the kernel's files do not show that of InfiniBand ports.
// The device is opened for it and closed again. The error wraps device.ErrNotAvailable where there is no libibverbs.
func PortMTU(name string, port int) (int, error) {
	p, err := ibv.New()
	if err != nil {
		return 0, err
	}
	return portMTU(p, name, port)
}

func portMTU(p device.Provider, name string, port int) (mtu int, err error) {
	d, err := p.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s, err := d.Port(port)
	if err != nil {
		return 0, err
	}
	if mtu = s.ActiveMTU.Bytes(); mtu == 0 {
		return 0, fmt.Errorf("verbs: device %s: port %d tells no active MTU (%d)", name, port, s.ActiveMTU)
	}
	return mtu, nil
}
