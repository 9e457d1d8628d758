package rdmasys

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrConfigHidden: the kernel shows only the first 64 bytes of a configuration space to everybody but root.
var ErrConfigHidden = errors.New("only root may read the whole PCI configuration space")

// PCIe is what a PCI Express device is allowed to do on its bus.
type PCIe struct {
	// RelaxedOrdering: the device may mark writes that the root complex need not keep in order.
	RelaxedOrdering bool
	ExtendedTags    bool
	MaxPayload      int // bytes of a write
	MaxReadRequest  int // bytes of a read
}

// ParseConfig reads the PCI Express capability of a configuration space, as the file "config" of a PCI device in /sys
// holds it. It wraps [ErrConfigHidden] for one that was cut to the header.
func ParseConfig(b []byte) (PCIe, error) {
	const (
		header       = 64
		status       = 0x06
		capListBit   = 1 << 4
		capPointer   = 0x34
		idPCIe       = 0x10
		deviceCtl    = 8 // within the capability
		longestChain = 48
	)
	if len(b) < header {
		return PCIe{}, fmt.Errorf("a PCI configuration space has 64 bytes or more, this one %d", len(b))
	}
	if binary.LittleEndian.Uint16(b) == 0xffff {
		return PCIe{}, errors.New("the PCI configuration space reads as all ones: the device does not answer")
	}
	if binary.LittleEndian.Uint16(b[status:])&capListBit == 0 {
		return PCIe{}, errors.New("the device has no list of PCI capabilities")
	}
	if len(b) == header {
		return PCIe{}, ErrConfigHidden
	}
	at := int(b[capPointer] &^ 3)
	for range longestChain {
		switch {
		case at == 0:
			return PCIe{}, errors.New("the device has no PCI Express capability")
		case at < header || at+2 > len(b):
			return PCIe{}, fmt.Errorf("the list of PCI capabilities points to 0x%x, outside of it", at)
		}
		if b[at] == idPCIe {
			if at+deviceCtl+2 > len(b) {
				return PCIe{}, fmt.Errorf("the PCI Express capability at 0x%x is cut", at)
			}
			ctl := binary.LittleEndian.Uint16(b[at+deviceCtl:])
			return PCIe{
				RelaxedOrdering: ctl&(1<<4) != 0, ExtendedTags: ctl&(1<<8) != 0,
				MaxPayload: 128 << (ctl >> 5 & 7), MaxReadRequest: 128 << (ctl >> 12 & 7),
			}, nil
		}
		at = int(b[at+1] &^ 3)
	}
	return PCIe{}, errors.New("the list of PCI capabilities goes in a circle")
}
