package node

import (
	"slices"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/metahttp"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// The keys of the sections.
const (
	logKey          = "log"
	adminKey        = "admin"
	segmentKey      = "segment"
	transferKey     = "transfer"
	metadataHTTPKey = "metadata_http"
	metadataKey     = "metadata"
	transportsKey   = "transports"
	storeKey        = "store"
	masterKey       = "master"
	evictionKey     = "eviction"
)

// Schema is everything that a config file of this binary may contain besides Mooncake's flat keys.
func Schema() config.Schema {
	return config.Schema{
		Sections: []config.SectionSpec{
			{Key: logKey, Doc: "What is logged and where.", Defaults: telemetry.DefaultLog()},
			{Key: adminKey, Doc: "The HTTP server for operators: metrics, health, log level, profiles.", Defaults: telemetry.DefaultAdmin()},
			{Key: segmentKey, Doc: "How the memory of global_segment_size is obtained.", Defaults: segment.DefaultOptions()},
			{Key: transferKey, Doc: "The Transfer Engine: ports, deadlines, limits.", Defaults: transfer.DefaultConfig()},
			{Key: metadataHTTPKey, Doc: "The HTTP metadata server for other engines, on the node's own metadata backend.", Defaults: metahttp.DefaultConfig()},
			{Key: storeKey, Doc: "The node as a client of the Store: its master, and the memory it lends.", Defaults: DefaultStoreConfig()},
			{Key: masterKey, Doc: "A Store master inside the node; mooncake up turns it on.", Defaults: DefaultMasterConfig()},
		},
		Kinds: []config.KindSpec{
			{Key: metadataKey, Doc: "Where segment descriptors are kept.", Kind: metadata.Kind, Single: true},
			{Key: evictionKey, Doc: "What the embedded master throws away when it needs room, by tenant; * is for all others and adaptive unless it is named.", Kind: eviction.Kind, Shared: EvictionConfig{}, Live: true},
			{Key: transportsKey, Doc: "How bytes move between nodes.", Kind: transports.Kind, Always: alwaysTransports()},
		},
	}
}

// shmType is the one transport that stays on its host.
const shmType = "shm"

// alwaysTransports are in every node unless the file switches them off: shared memory finds out by itself whom
// it reaches, and everybody else is reached over tcp.
func alwaysTransports() []string {
	for _, p := range transports.Kind.List() {
		if p.Name == shmType && p.State == module.Available {
			return []string{shmType, "tcp"}
		}
	}
	return []string{"tcp"}
}

// Parts lists every part of every kind that this binary knows, available or not.
func Parts() []module.Info {
	return slices.Concat(eviction.Kind.List(), metadata.Kind.List(), transports.Kind.List())
}
