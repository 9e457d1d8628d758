package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// Endpoint says what engine one side of the benchmark is.
type Endpoint struct {
	Transport string // type in transports.Kind
	// Section holds the transport's settings; nil = its defaults.
	Section  module.Section
	Metadata string // a value of metadata_server: P2PHANDSHAKE, etcd://..., http://..., redis://...
	// Open, if set, connects to the metadata service, and Metadata is only its type.
	Open func(context.Context) (metadata.Backend, error)
	// Name is the engine's local_hostname; "" = one made up.
	Name string
	// Host is what the engine advertises and binds to; "" = loopback. Nobody connects to the measuring
	// side of a tcp benchmark, so that is right for targets on other hosts too.
	Host string
	Log  *slog.Logger // nil = nowhere
}

// defaultName is the name of a benchmark's engine: in P2P mode its host, else a name that no other
// process on any host has.
func (e Endpoint) defaultName(role string) string {
	if e.Metadata == metadata.P2P {
		return e.host()
	}
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	return fmt.Sprintf("mooncake-bench-%s-%s-%d", role, host, os.Getpid())
}

func (e Endpoint) host() string {
	if e.Host == "" {
		return "127.0.0.1"
	}
	return e.Host
}

// side is a running engine with one region.
type side struct {
	engine *transfer.Engine
	meta   metadata.Backend // nil in P2P mode
	arena  *segment.Arena
	region *segment.Region
}

// urlSection is the config section of a metadata backend that is given by its address alone.
type urlSection string

// Decode implements module.Section.
func (u urlSection) Decode(into any) error {
	v := reflect.ValueOf(into).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("koanf") == "url" {
			v.Field(i).SetString(string(u))
			return nil
		}
	}
	if u != "" {
		return fmt.Errorf("--metadata: this backend takes no address")
	}
	return nil
}

// open starts an engine that has size bytes of its own registered. role appears in names.
func open(ctx context.Context, e Endpoint, role string, size uint64) (_ *side, err error) {
	s := &side{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	typ, url := e.Metadata, ""
	if e.Open == nil {
		if typ, url, err = metadata.Server(e.Metadata); err != nil {
			return nil, fmt.Errorf("--metadata: %w", err)
		}
	}
	opt := transfer.Options{Config: transfer.DefaultConfig(), LocalName: e.Name, AdvertiseHost: e.host(), BindAddress: e.host(), Log: e.Log}
	if opt.LocalName == "" {
		opt.LocalName = e.defaultName(role)
	}
	if typ != metadata.P2P {
		build := e.Open
		if build == nil {
			build = func(ctx context.Context) (metadata.Backend, error) {
				return metadata.Kind.Build(ctx, typ, module.Env{Log: e.Log}, urlSection(url))
			}
		}
		if s.meta, err = build(ctx); err != nil {
			return nil, fmt.Errorf("--metadata: %w", err)
		}
		opt.Metadata, opt.MetadataRaw = s.meta, typ == "http" || typ == "https"
	}
	name, err := transports.Kind.Resolve(e.Transport)
	if err != nil {
		return nil, fmt.Errorf("--transport: %w", err)
	}
	section := e.Section
	if section == nil {
		section = module.NoConfig{}
	}
	t, err := transports.Kind.Build(ctx, name, module.Env{Log: e.Log}, section)
	if err != nil {
		return nil, fmt.Errorf("--transport: %w", err)
	}
	opt.Transports = []transfer.NamedTransport{{Name: name, Transport: t}}
	o := segment.DefaultOptions()
	o.Prefault = true // first touches are no part of what is measured
	if s.arena, err = segment.New(ctx, role, size, o); err != nil {
		return nil, err
	}
	if s.region, err = s.arena.Region(0, size, transports.ReadWrite); err != nil {
		return nil, err
	}
	if s.engine, err = transfer.New(opt); err != nil {
		return nil, err
	}
	if err := s.engine.Register(ctx, s.region); err != nil {
		return nil, err
	}
	return s, s.engine.Start(ctx)
}

// close ends what open has begun, however far it came.
func (s *side) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	if s.engine != nil {
		if err := s.engine.Close(ctx); err != nil {
			return err // the memory may still be in use: it goes with the process
		}
	}
	if s.meta != nil {
		errs = append(errs, s.meta.Close())
	}
	if s.region != nil {
		s.region.Close()
	}
	if s.arena != nil {
		errs = append(errs, s.arena.Close(ctx))
	}
	return errors.Join(errs...)
}
