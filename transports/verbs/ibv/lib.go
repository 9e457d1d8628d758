//go:build !noverbs

package ibv

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

const libraryName = "libibverbs.so.1"

// library is the loaded libibverbs: addresses of its functions, 0 for those of newer versions that this one lacks.
type library struct {
	getDeviceList, freeDeviceList, openDevice, closeDevice uintptr
	queryDevice, queryPort, queryGID, queryGIDTable        uintptr
	getAsyncEvent, ackAsyncEvent                           uintptr
	allocPD, deallocPD, regMR, regMRIova2, deregMR         uintptr
	createCompChannel, destroyCompChannel                  uintptr
	createCQ, destroyCQ, getCQEvent, ackCQEvents           uintptr
	createQP, modifyQP, destroyQP                          uintptr

	errnoLocation uintptr // of the C library: where the calling thread's errno is
}

// load opens the library by name. It stays loaded: drivers of devices do not survive being unloaded.
func load(name string) (*library, error) {
	// Why it failed is known to the thread that tried, and is asked for in a second call.
	runtime.LockOSThread()
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	runtime.UnlockOSThread()
	if err != nil {
		why := err.Error()
		if strings.HasPrefix(why, name+": ") && strings.HasSuffix(why, os.ErrNotExist.Error()) || strings.HasSuffix(why, "No such file or directory") {
			return nil, fmt.Errorf("%s not found: %w", name, device.ErrNotAvailable)
		}
		return nil, fmt.Errorf("%s cannot be loaded (%s): %w", name, why, device.ErrNotAvailable)
	}
	l := &library{}
	for _, s := range []struct {
		name  string
		at    *uintptr
		newer bool // may be absent
	}{
		{"ibv_get_device_list", &l.getDeviceList, false},
		{"ibv_free_device_list", &l.freeDeviceList, false},
		{"ibv_open_device", &l.openDevice, false},
		{"ibv_close_device", &l.closeDevice, false},
		{"ibv_query_device", &l.queryDevice, false},
		{"ibv_query_port", &l.queryPort, false},
		{"ibv_query_gid", &l.queryGID, false},
		{"_ibv_query_gid_table", &l.queryGIDTable, true},
		{"ibv_get_async_event", &l.getAsyncEvent, false},
		{"ibv_ack_async_event", &l.ackAsyncEvent, false},
		{"ibv_alloc_pd", &l.allocPD, false},
		{"ibv_dealloc_pd", &l.deallocPD, false},
		{"ibv_reg_mr", &l.regMR, false},
		{"ibv_reg_mr_iova2", &l.regMRIova2, true},
		{"ibv_dereg_mr", &l.deregMR, false},
		{"ibv_create_comp_channel", &l.createCompChannel, false},
		{"ibv_destroy_comp_channel", &l.destroyCompChannel, false},
		{"ibv_create_cq", &l.createCQ, false},
		{"ibv_destroy_cq", &l.destroyCQ, false},
		{"ibv_get_cq_event", &l.getCQEvent, false},
		{"ibv_ack_cq_events", &l.ackCQEvents, false},
		{"ibv_create_qp", &l.createQP, false},
		{"ibv_modify_qp", &l.modifyQP, false},
		{"ibv_destroy_qp", &l.destroyQP, false},
	} {
		if *s.at, err = purego.Dlsym(h, s.name); err != nil && !s.newer {
			return nil, fmt.Errorf("%s has no function %s: %w", name, s.name, device.ErrNotAvailable)
		}
	}
	if l.errnoLocation, err = purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location"); err != nil {
		return nil, fmt.Errorf("the C library has no __errno_location (%w): %w", err, device.ErrNotAvailable)
	}
	return l, nil
}

// call calls a function of the library and returns its result and errno, which means something only when the result says
// that the function failed.
//
//go:uintptrescapes
func (l *library) call(fn uintptr, args ...uintptr) (r uintptr, errno unix.Errno) {
	runtime.LockOSThread() // errno is the thread's
	defer runtime.UnlockOSThread()
	r, _, _ = purego.SyscallN(fn, args...)
	e, _, _ := purego.SyscallN(l.errnoLocation)
	return r, unix.Errno(*at[int32](e))
}

var loaded = sync.OnceValues(func() (*library, error) { return load(libraryName) })

// New loads libibverbs and returns what it offers. Without the library the error wraps device.ErrNotAvailable and says
// what is missing.
func New() (device.Provider, error) {
	l, err := loaded()
	if err != nil {
		return nil, err
	}
	return &provider{lib: l, sysfs: "/sys"}, nil
}

// pointer is for functions that return an address and tell by errno why not.
func pointer(what string, r uintptr, errno unix.Errno) (uintptr, error) {
	if r != 0 {
		return r, nil
	}
	return 0, fail(what, errno)
}

// status is for functions that return 0 or an errno; some drivers return it negative, or -1 and set errno.
func status(what string, r uintptr, errno unix.Errno) error {
	switch n := int32(r); {
	case n == 0:
		return nil
	case n > 0:
		return fail(what, unix.Errno(n))
	case n == -1 && errno != 0:
		return fail(what, errno)
	default:
		return fail(what, unix.Errno(-n))
	}
}

var errUnknown = errors.New("failed without telling why")

func fail(what string, errno unix.Errno) error {
	if errno == 0 {
		return fmt.Errorf("verbs: %s: %w", what, errUnknown)
	}
	return fmt.Errorf("verbs: %s: %w", what, errno)
}

// cString is the text up to the first NUL.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
