// Command external-transport is a transport in a process of its own: it moves bytes between the nodes of one host and
// user over Unix sockets. All that makes it a plugin is in this file; the transport itself is package mover. In the
// node's configuration:
//
//	"transports": {"mover": {"type": "external", "command": ["/opt/mooncake/external-transport"], "config": {"connections": 2}}},
//	"prefer": ["mover", "tcp"]
package main

import (
	"log"
	"time"

	"github.com/mooncake-agent/mooncake/plugins/examples/external-transport/mover"
	"github.com/mooncake-agent/mooncake/plugins/sdk/external"
	"github.com/mooncake-agent/mooncake/transports"
)

// config is the section's key "config".
type config struct {
	Connections int `json:"connections"` // to one peer
	StallMS     int `json:"stall_ms"`    // a peer that moves nothing for so long is given up
}

func main() {
	about := external.About{Name: "mover", Version: "1.0"}
	if err := external.ServeTransport(about, external.TransportOptions{MustMatch: []string{"host"}}, open); err != nil {
		log.Fatal(err)
	}
}

func open(c external.Config) (transports.Transport, error) {
	m := mover.DefaultConfig()
	own := config{Connections: m.Connections, StallMS: int(m.Stall / time.Millisecond)}
	if err := c.Decode(&own); err != nil {
		return nil, err
	}
	return mover.New(mover.Config{Connections: own.Connections, Stall: time.Duration(own.StallMS) * time.Millisecond})
}
