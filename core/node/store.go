package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/fx"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/client/leader"
	"github.com/mooncake-agent/mooncake/core/client/rest"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

// StoreConfig is the config section "store".
type StoreConfig struct {
	client.Config `koanf:",squash"`
	ClusterID     string      `koanf:"cluster_id" env:"MC_STORE_CLUSTER_ID" doc:"cluster_id of the masters, where they elect one: master_server_address etcd://..."`
	REST          rest.Config `koanf:"rest"`
}

// DefaultStoreConfig returns the defaults of the section.
func DefaultStoreConfig() StoreConfig {
	return StoreConfig{Config: client.DefaultConfig(), ClusterID: leader.DefaultCluster, REST: rest.DefaultConfig()}
}

// Validate checks both parts.
func (c *StoreConfig) Validate() error { return errors.Join(c.Config.Validate(), c.REST.Validate()) }

// storeNode is the node's part in a Store: a client, and its memory lent to the master.
type storeNode struct {
	client atomic.Pointer[client.Client] // nil before the start and without a master
	mount  *client.Mount                 // nil: no memory
}

// mountWait is how long the start waits for the master. A node without one is of use to Transfer Engine peers, so
// it is ready then, says that it is not mounted, and keeps trying.
const mountWait = 5 * time.Second

func newStore(lc fx.Lifecycle, p *Plan, e *transfer.Engine, mem *segmentMemory, m *embeddedMaster, admin *telemetry.Admin, log *slog.Logger, reg *telemetry.Registry) (*storeNode, error) {
	s := &storeNode{}
	if !p.inStore() {
		return s, nil
	}
	if err := s.serveREST(p, admin, log); err != nil {
		return nil, err
	}
	if p.Root.GlobalSegment > 0 {
		admin.Ready("store", s.health)
	}
	elected, err := newElection(p, log, reg)
	if err != nil {
		return nil, err
	}
	lc.Append(fx.Hook{
		OnStart: func(ctx context.Context) error {
			o := storeOptions(p, e, log)
			o.Metrics = reg
			switch {
			case elected != nil:
				o.Leader = elected.follow(log)
			case len(o.Master) == 0:
				o.Master = []string{m.dial()}
			}
			return s.start(ctx, o, mem)
		},
		OnStop: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, drainTimeout)
			defer cancel()
			if err := s.client.Load().Close(ctx); err != nil { // the master forgets the node by itself
				log.Warn("stop: the segment could not be unmounted in order", "part", "store", "error", err)
			}
			return elected.close()
		},
	})
	return s, nil
}

// serveREST adds the REST paths to the admin server.
func (s *storeNode) serveREST(p *Plan, admin *telemetry.Admin, log *slog.Logger) error {
	if p.Store.REST.Access == "off" {
		return nil
	}
	h, err := rest.New(rest.Options{Config: p.Store.REST, Client: s.client.Load, Budget: p.Root.LocalBuffer, Log: log.With("part", "rest")})
	if err != nil {
		return err
	}
	handle := admin.HandleLocal
	if p.Store.REST.Access == "open" {
		handle = func(pattern, doc string, h http.Handler) {
			admin.Handle(pattern, doc, http.NewCrossOriginProtection().Handler(h)) // no web page's business
		}
	}
	for _, r := range h.Routes() {
		handle(r.Pattern, r.Doc, r.Handler)
	}
	return nil
}

func (s *storeNode) start(ctx context.Context, o client.Options, mem *segmentMemory) error {
	c, err := client.New(o)
	if err != nil {
		return err
	}
	s.client.Store(c)
	if mem.region == nil {
		return nil
	}
	mem.fence = client.NewArenaFence(o.Engine, mem.arena, mem.region)
	mount, err := c.Mount(client.SegmentSpec{Region: mem.region, Fence: mem.fence.Fence})
	if err != nil {
		return err
	}
	s.mount = mount
	wait, cancel := context.WithTimeout(ctx, mountWait)
	defer cancel()
	if err := mount.Wait(wait); err != nil {
		o.Log.Warn("the segment is not mounted yet: the master does not answer; trying again until it does",
			"master", c.Master(), "key", "master_server_address", "error", err)
	}
	return nil
}

// health is the check of /readyz.
func (s *storeNode) health(context.Context) error {
	c := s.client.Load()
	if c == nil {
		return errors.New("not started")
	}
	return c.Health()
}

// storeOptions are those of a client of the configured Store.
func storeOptions(p *Plan, e *transfer.Engine, log *slog.Logger) client.Options {
	return client.Options{Config: p.Store.Config, Master: p.Master, Engine: e, Tenant: p.Root.TenantID, HostID: client.HostID(p.Root.LocalHostname),
		Log: log.With("part", "store")}
}

// status adds the Store's part to the node's.
func (s *storeNode) status(st *Status) {
	c := s.client.Load()
	if c == nil {
		return
	}
	st.Master = c.Master()
	if s.mount != nil {
		mounted := s.mount.Err() == nil
		st.Mounted = &mounted
	}
}
