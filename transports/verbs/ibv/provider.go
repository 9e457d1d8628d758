//go:build !noverbs

package ibv

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

var _ device.Provider = (*provider)(nil)

type provider struct {
	lib   *library
	sysfs string // "/sys"
}

// each calls f with the devices of the library's list, which are valid until f returns; f returns false to stop.
func (p *provider) each(f func(dev uintptr, name string) bool) error {
	n := new(int32)
	r, errno := p.lib.call(p.lib.getDeviceList, uintptr(unsafe.Pointer(n)))
	list, err := pointer("ibv_get_device_list", r, errno)
	if errors.Is(err, unix.ENOSYS) {
		return nil // no RDMA in this kernel, or its modules are not loaded
	}
	if err != nil {
		return err
	}
	defer p.lib.call(p.lib.freeDeviceList, list)
	for _, dev := range unsafe.Slice(at[uintptr](list), *n) {
		if !f(dev, cString(at[cDevice](dev).Name[:])) {
			break
		}
	}
	return nil
}

func (p *provider) Devices() (names []string, err error) {
	err = p.each(func(_ uintptr, name string) bool {
		names = append(names, name)
		return true
	})
	return names, err
}

func (p *provider) Open(name string) (device.Device, error) {
	var d *dev
	found, openErr := false, error(nil)
	err := p.each(func(at uintptr, n string) bool {
		if n != name {
			return true
		}
		found = true
		d, openErr = p.open(at, name)
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, fmt.Errorf("verbs: no RDMA device %q on this host: %w", name, unix.ENODEV)
	case openErr != nil:
		return nil, openErr
	}
	return d, nil
}

func (p *provider) open(at uintptr, name string) (_ *dev, err error) {
	r, errno := p.lib.call(p.lib.openDevice, at)
	ctx, err := pointer("ibv_open_device "+name, r, errno)
	if err != nil {
		return nil, err
	}
	d := &dev{lib: p.lib, sysfs: p.sysfs, name: name, ctx: ctx}
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	if d.limits, err = d.queryLimits(); err != nil {
		return nil, err
	}
	if d.events, err = newWaiter(asyncFD(ctx), name+" events"); err != nil {
		return nil, fmt.Errorf("verbs: event descriptor of %s: %w", name, err)
	}
	r, errno = p.lib.call(p.lib.allocPD, ctx)
	if d.pd, err = pointer("ibv_alloc_pd on "+name, r, errno); err != nil {
		return nil, err
	}
	return d, nil
}

func asyncFD(ctx uintptr) int { return int(at[cContext](ctx).AsyncFD) }
