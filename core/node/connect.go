package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
)

// Connection is a Store client with an engine of its own, for commands that are no node.
type Connection struct {
	*client.Client
	meta     *metadataBackend
	election *election
	mem      segmentMemory
	close    sync.Once
}

// ConnectOptions override the configuration.
type ConnectOptions struct {
	// Master are addresses with commas between them, or an election, etcd://...; "" means what the configuration
	// says, else [DefaultMaster].
	Master string
	// Tenant is whose objects these are; "" means that of the configuration.
	Tenant string
	// Lend is memory that the client lends to the Store.
	Lend units.Size
	Log  *slog.Logger
}

// Connect makes a client of the configured Store: with the configured transports and metadata service, but without
// memory of its own, and under a name of its own.
func Connect(ctx context.Context, l *config.Loaded, o ConnectOptions) (_ *Connection, err error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p, err := Resolve(l)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.Contains(o.Master, "://"):
		t, err := config.ParseMaster(o.Master)
		if err != nil {
			return nil, err
		}
		if why := p.findMaster(t); why != nil {
			return nil, errors.New(why.Msg)
		}
	case o.Master != "":
		p.Master, p.Election = strings.Split(o.Master, ","), ""
	case len(p.Master) == 0 && p.Election == "" && p.Root.MasterAddress != "":
		return nil, fmt.Errorf("master_server_address: %s", p.findMaster(p.Root.Master).Msg)
	case len(p.Master) == 0 && p.Election == "":
		p.Master = []string{DefaultMaster}
	}
	conn := &Connection{}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	reg := telemetry.NewRegistry(telemetry.BuildVersion())
	if conn.meta, err = buildMetadata(p, log, reg); err != nil {
		return nil, err
	}
	ts, err := newTransports(p, log, reg)
	if err != nil {
		return nil, err
	}
	e, err := transfer.New(initiatorOptions(p, conn.meta, ts, log))
	if err != nil {
		return nil, err
	}
	so := storeOptions(p, e, log)
	if conn.election, err = newElection(p, log, reg); err != nil {
		return nil, err
	}
	if conn.election != nil {
		so.Leader = conn.election.follow(log)
	}
	if o.Tenant != "" {
		so.Tenant = o.Tenant
	}
	if conn.Client, err = client.New(so); err != nil {
		return nil, err
	}
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	if o.Lend > 0 {
		if err := conn.lend(ctx, uint64(o.Lend), p.Segment); err != nil {
			return nil, err
		}
	}
	return conn, nil
}

// lend mounts memory of its own.
func (c *Connection) lend(ctx context.Context, size uint64, o segment.Options) error {
	e := c.Client.Engine()
	var err error
	if c.mem.arena, err = segment.New(ctx, "client", size, o); err != nil {
		return err
	}
	if c.mem.region, err = c.mem.arena.Region(0, size, transports.ReadWrite); err != nil {
		return err
	}
	if err := e.Register(ctx, c.mem.region); err != nil {
		return err
	}
	c.mem.fence = client.NewArenaFence(e, c.mem.arena, c.mem.region)
	m, err := c.Client.Mount(client.SegmentSpec{Region: c.mem.region, Fence: c.mem.fence.Fence})
	if err != nil {
		return err
	}
	return m.Wait(ctx)
}

// DefaultMaster is where commands look for a master that nobody named.
const DefaultMaster = "127.0.0.1:50051"

// Close ends client, engine and metadata connection. Further calls do nothing.
func (c *Connection) Close() (err error) {
	c.close.Do(func() { err = c.closeAll() })
	return err
}

func (c *Connection) closeAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	if c.Client != nil {
		errs = append(errs, c.Client.Close(ctx), c.Client.Engine().Close(ctx))
	}
	errs = append(errs, c.election.close())
	if c.meta != nil && c.meta.Backend != nil {
		errs = append(errs, c.meta.Close())
	}
	if c.mem.region != nil {
		if c.mem.fence != nil {
			c.mem.fence.Close()
		}
		c.mem.region.Close()
	}
	if c.mem.arena != nil {
		errs = append(errs, c.mem.arena.Close(ctx))
	}
	return errors.Join(errs...)
}
