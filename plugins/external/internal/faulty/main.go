// Command faulty is an eviction policy for tests of the host: first in, first out, until it does what it is told to by the
// environment (before the handshake) or by its configuration (afterwards).
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/plugins/sdk/external"
)

// config says what goes wrong, and after how many calls of Apply or Victims.
type config struct {
	Fault string `json:"fault"`
	After int64  `json:"after"`
	Once  bool   `json:"once"` // in the first process only
}

func main() {
	switch mode := os.Getenv("FAULTY"); mode {
	case "":
	case "exit":
		fmt.Fprintln(os.Stderr, "last words of a program that cannot start")
		os.Exit(7)
	case "silent":
		time.Sleep(time.Hour)
	case "chatty":
		fmt.Println("hello, I am not a plugin")
		time.Sleep(time.Hour)
	case "version":
		fmt.Printf("1|99|unix|%s/x|grpc|\n", os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
		time.Sleep(time.Hour)
	case "elsewhere":
		fmt.Println("1|1|tcp|127.0.0.1:1|grpc|")
		time.Sleep(time.Hour)
	case "nocert": // a certificate is what proves that it was the program which was started
		fmt.Printf("1|1|unix|%s/x|grpc|\n", os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
		time.Sleep(time.Hour)
	case "kind":
		end(external.Serve(external.Part{About: about, Kind: pluginv1.Kind_KIND_METADATA, Register: func(*grpc.Server) {},
			Configure: func(context.Context, external.Config) error { return nil }}))
	default:
		end(fmt.Errorf("FAULTY=%s is not known", mode))
	}
	end(external.ServePolicy(about, open))
}

var about = external.About{Name: "faulty", Version: "0"}

func end(err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

var (
	told  config
	log   *slog.Logger
	calls atomic.Int64
	kept  [][]byte // what leaks
)

func open(c external.Config) (func(eviction.Spec) (*fifo, error), error) {
	if err := c.Decode(&told); err != nil {
		return nil, err
	}
	log = c.Log
	switch told.Fault {
	case "refuse":
		return nil, errors.New("fault: refused as told")
	case "unavailable":
		return nil, fmt.Errorf("as told: %w", external.ErrUnavailable)
	case "child": // leaves a process of its own behind
		p, err := os.StartProcess("/bin/sleep", []string{"sleep", "3600"}, &os.ProcAttr{})
		if err != nil {
			return nil, err
		}
		log.Info("started a child", "child", p.Pid)
	case "loop":
		time.AfterFunc(10*time.Millisecond, func() { os.Exit(9) })
	}
	if told.Once && c.Generation > 1 {
		told.Fault = ""
	}
	log.Info("configured", "instance", c.Instance, "env", strings.Join(names(), " "))
	return func(eviction.Spec) (*fifo, error) { return &fifo{}, nil }, nil
}

func names() (out []string) {
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// misbehave does what it was told once enough calls have come.
func misbehave() (garbage bool, err error) {
	if calls.Add(1) <= told.After {
		return false, nil
	}
	switch told.Fault {
	case "exit":
		os.Exit(5)
	case "panic":
		go func() { panic("as told") }()
		time.Sleep(time.Hour)
	case "stop":
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "hang":
		time.Sleep(time.Hour)
	case "flood":
		line := []byte(strings.Repeat("flood ", 100) + "\n")
		for range 4 {
			go func() {
				for {
					syscall.Write(2, line)
				}
			}()
		}
		told.Fault = ""
	case "leak":
		for {
			b := make([]byte, 8<<20)
			for i := range b {
				b[i] = 1
			}
			kept = append(kept, b)
		}
	case "garbage":
		return true, nil
	case "error":
		return false, errors.New("as told")
	}
	return false, nil
}

// fifo names the oldest resident object first.
type fifo struct {
	order []eviction.Handle
	info  map[eviction.Handle]eviction.Event
}

func (p *fifo) Apply(events []eviction.Event) error {
	if _, err := misbehave(); err != nil {
		return err
	}
	if p.info == nil {
		p.info = map[eviction.Handle]eviction.Event{}
	}
	for _, e := range events {
		switch e.Kind {
		case eviction.Insert, eviction.Restore:
			p.order = append(p.order, e.Handle)
			p.info[e.Handle] = e
		case eviction.Remove:
			if i := slices.Index(p.order, e.Handle); i >= 0 {
				p.order = slices.Delete(p.order, i, i+1)
			}
			delete(p.info, e.Handle)
		case eviction.Pin, eviction.Unpin:
			if o, ok := p.info[e.Handle]; ok {
				o.Flags = e.Flags
				p.info[e.Handle] = o
			}
		}
	}
	return nil
}

func (p *fifo) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	garbage, err := misbehave()
	if err != nil {
		return dst, err
	}
	if garbage {
		for i := range 4 * need.Max {
			dst = append(dst, eviction.Handle(binary.LittleEndian.Uint32([]byte{byte(i), 0xee, 0xee, 0xee})))
		}
		return dst, nil
	}
	for _, h := range p.order {
		if len(dst) == need.Max {
			break
		}
		if p.info[h].Flags&(eviction.FlagHardPin|eviction.FlagSoftPin) == 0 {
			dst = append(dst, h)
		}
	}
	return dst, nil
}

func (p *fifo) Close() error { return nil }
