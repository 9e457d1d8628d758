package replay

import (
	"testing"
	"time"
)

// BenchmarkReplay measures whole runs, simulator and policy, in block accesses a second of processor time.
func BenchmarkReplay(b *testing.B) {
	tr := open(b, conversation)
	for _, name := range []string{"lru", "clock", "s3fifo", "adaptive"} {
		b.Run(name, func(b *testing.B) {
			var spent time.Duration
			for b.Loop() {
				r, err := Run(tr, policy(b, name), 20_000, Options{})
				if err != nil {
					b.Fatal(err)
				}
				spent += r.Elapsed
			}
			b.ReportMetric(float64(b.N)*float64(tr.Accesses())/spent.Seconds()/1e6, "Maccess/s")
		})
	}
}
