package node

import (
	"context"
	"io"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/metahttp"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// Metrics lists every metric that a node of this binary can have, whatever its configuration. Nothing
// is started.
func Metrics() ([]telemetry.Metric, error) {
	reg := telemetry.NewRegistry(telemetry.BuildVersion())
	logging, err := telemetry.NewLogging(telemetry.DefaultLog(), io.Discard)
	if err != nil {
		return nil, err
	}
	if _, err := telemetry.NewAdmin(telemetry.DefaultAdmin(), logging, reg, telemetry.BuildVersion()); err != nil {
		return nil, err
	}
	if _, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1", Metrics: reg}); err != nil {
		return nil, err
	}
	if _, err := metahttp.New(metahttp.DefaultConfig(), nil, nil, module.Env{Metrics: reg}); err != nil {
		return nil, err
	}
	if _, err := client.New(client.Options{Config: client.DefaultConfig(), Master: []string{DefaultMaster}, Metrics: reg}); err != nil {
		return nil, err
	}
	registerParts(metadata.Kind, reg)
	registerParts(transports.Kind, reg)
	return reg.Catalogue()
}

// registerParts builds each part with its defaults for the sake of its metrics. One that needs
// settings cannot be built here; it has registered its metrics by then, has none, or its config has a method that
// registers them.
func registerParts[T interface{ Close() error }](k *module.Kind[T], reg *telemetry.Registry) {
	for _, i := range k.List() {
		env := module.Env{Name: i.Name, Metrics: reg}
		if c, ok := i.Defaults.(interface{ RegisterMetrics(module.Env) error }); ok {
			_ = c.RegisterMetrics(env) // what is there twice is there
			continue
		}
		if part, err := k.Build(context.Background(), i.Name, env, module.NoConfig{}); err == nil {
			_ = part.Close()
		}
	}
}
