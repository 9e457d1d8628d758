package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/mooncake-agent/mooncake/core/client/leader"
	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/metadata"
)

// electionType is the metadata backend that elections can be followed in. Those in redis are kept in a hash and those
// in Kubernetes in a lease, which no metadata backend reads.
const electionType = "etcd"

// findMaster sets where the master is: fixed addresses, or an election. A problem tells why no master is used.
func (p *Plan) findMaster(t config.MasterTarget) *config.Problem {
	p.Master, p.Election = nil, ""
	switch t.Scheme {
	case "":
	case "tcp":
		p.Master = t.Addrs
	case electionType:
		p.Election = t.URL
	default:
		return &config.Problem{Key: "master_server_address", Msg: fmt.Sprintf(
			"elections in %s cannot be followed: no master is used; write etcd://..., or the host:port of the master", t.Scheme)}
	}
	return nil
}

// election is the service in which masters elect one of them, and what is known of it.
type election struct {
	backend  metadata.Backend
	cluster  string
	follower *leader.Follower // nil before the start
}

// newElection builds what follows the configured election; nil if there is none.
func newElection(p *Plan, log *slog.Logger, reg *telemetry.Registry) (*election, error) {
	if p.Election == "" {
		return nil, nil
	}
	i := config.Instance{Name: "election", Type: electionType, Section: config.Params{"url": p.Election}}
	b, err := metadata.Kind.Build(context.Background(), i.Type, env(log, reg)(i), i.Section)
	if err != nil {
		return nil, fmt.Errorf("master_server_address: %w", err)
	}
	return &election{backend: b, cluster: p.Store.ClusterID}, nil
}

func (e *election) follow(log *slog.Logger) *leader.Follower {
	e.follower = leader.Follow(e.backend, leader.Key(e.cluster), log.With("part", "election"))
	return e.follower
}

// close ends the following. Of a nil election there is nothing to end.
func (e *election) close() error {
	if e == nil {
		return nil
	}
	err := e.backend.Close()
	if e.follower != nil {
		e.follower.Close()
	}
	if errors.Is(err, metadata.ErrClosed) {
		return nil
	}
	return err
}
