package transfer_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/transports"
)

// rdmaFake describes itself as verbs does, as long as its device is there.
type rdmaFake struct {
	*fake
	lost atomic.Bool
}

func newRDMAFake() *rdmaFake { return &rdmaFake{fake: newFake()} }

func (f *rdmaFake) Describe(d *transports.Descriptor) {
	if f.lost.Load() || d.Protocol != "" && d.Protocol != "rdma" {
		return
	}
	d.Protocol = "rdma"
	d.Devices = []transports.Device{{Name: "mlx5_0", GID: "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01"}}
	d.PriorityMatrix = []byte(`{"cpu:0":[["mlx5_0"],[]]}`)
	for i := range d.Buffers {
		b := &d.Buffers[i]
		b.Name, b.RKey, b.LKey = "cpu:0", []uint32{1}, []uint32{2}
	}
}

// TestMixedCluster: in P2P mode a peer gets the document that it understands, whatever this engine is configured for.
func TestMixedCluster(t *testing.T) {
	const tcpDoc, rdmaDoc = `{"protocol":"tcp","name":"x","tcp_data_port":1}`, `{"protocol":"rdma","name":"x","devices":[],"buffers":[]}`
	for _, c := range []struct{ configured, asks, want string }{
		{"rdma", tcpDoc, "tcp"}, {"rdma", rdmaDoc, "rdma"}, {"rdma", `{}`, "rdma"}, {"rdma", `[`, ""}, {"rdma", `{"protocol":"nvlink","buffers":[]}`, "rdma"},
		{"tcp", rdmaDoc, "rdma"}, {"tcp", tcpDoc, "tcp"}, {"tcp", `{}`, "tcp"}, {"", `{}`, "rdma"},
	} {
		f := newRDMAFake()
		e := startEngine(t, func(o *transfer.Options) {
			o.Protocol = c.configured
			o.Transports = []transfer.NamedTransport{{Name: "verbs", Transport: f}, {Name: "tcp", Transport: newTCP(t, nil)}}
		})
		register(t, e, 4096)
		doc, err := handshake.Call(t.Context(), e.Address(), handshake.TypeMetadata, []byte(c.asks))
		if c.want == "" {
			if err == nil {
				t.Errorf("%+v was answered: %s", c, doc)
			}
			continue
		}
		d, err := transports.ParseDescriptor(doc)
		if err != nil {
			t.Fatalf("%+v: %v: %s", c, err, doc)
		}
		if d.Protocol != c.want {
			t.Errorf("%+v: got %s", c, doc)
			continue
		}
		switch hasTCP := len(d.Agent.Paths) == 1 && d.Agent.Paths[0].Type == "tcp" && d.Agent.Paths[0].Port > 0; c.want {
		case "rdma":
			if !hasTCP || len(d.Devices) != 1 || d.TCPDataPort != 0 || len(d.Buffers[0].RKey) != 1 {
				t.Errorf("%+v: %s", c, doc)
			}
		case "tcp":
			if hasTCP || d.TCPDataPort == 0 || d.Devices != nil || d.Buffers[0].RKey != nil {
				t.Errorf("%+v: %s", c, doc)
			}
		}
	}
}

// TestNoDeviceLeft: without a device the document is a tcp one, so that peers still get at the memory.
func TestNoDeviceLeft(t *testing.T) {
	f := newRDMAFake()
	e := startEngine(t, func(o *transfer.Options) {
		o.Protocol = "rdma"
		o.Transports = []transfer.NamedTransport{{Name: "verbs", Transport: f}, {Name: "tcp", Transport: newTCP(t, nil)}}
	})
	if d := e.Descriptor(); d.Protocol != "rdma" {
		t.Errorf("with its device: %+v", d)
	}
	f.lost.Store(true)
	if d := e.Descriptor(); d.Protocol != "tcp" || d.TCPDataPort == 0 {
		t.Errorf("without: %+v", d)
	}
}

// TestFallBackToTCP: a transfer whose RDMA fails takes the tcp path of the same document.
func TestFallBackToTCP(t *testing.T) {
	target := startEngine(t, func(o *transfer.Options) {
		o.Protocol = "rdma"
		o.Transports = []transfer.NamedTransport{{Name: "verbs", Transport: newRDMAFake()}, {Name: "tcp", Transport: newTCP(t, nil)}}
	})
	_, addr := register(t, target, 1<<16)
	f := newRDMAFake()
	f.answer = func(transports.Op) error { return errors.Join(transports.ErrUnreachable, errors.New("no rail")) }
	e := startEngine(t, func(o *transfer.Options) {
		o.Protocol = "rdma"
		o.TransferTimeout = 20 * time.Second
		o.Transports = []transfer.NamedTransport{{Name: "verbs", Transport: f}, {Name: "tcp", Transport: newTCP(t, nil)}}
	})
	roundTrip(t, e, open(t, e, target.Name()), addr, 1<<16)
	if f.count() == 0 {
		t.Error("RDMA was not tried first")
	}
}
