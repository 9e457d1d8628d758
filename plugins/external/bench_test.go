package external

import (
	"context"
	"slices"
	"testing"
	"time"
)

// BenchmarkControlCall is one small call to a plugin in Go: gRPC with TLS over a Unix socket, two processes.
func BenchmarkControlCall(b *testing.B) {
	p := open(b, faulty(b, "", nil)).Plugin()
	defer p.Stop()
	if err := p.Run(within(b, time.Minute), nil); err != nil {
		b.Fatal(err)
	}
	proc, err := p.Process(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := proc.health(context.Background()); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}
