package bench

import (
	"fmt"
	"io"
	"strconv"
	"time"
)

// Result is a finished measurement, in the form of "--json".
type Result struct {
	Transport       string  `json:"transport"`
	Op              string  `json:"op"`
	BlockBytes      uint64  `json:"block_bytes"`
	Batch           int     `json:"batch"`
	Threads         int     `json:"threads"`
	Seconds         float64 `json:"seconds"` // measured, without warm-up and content checks
	BytesPerSecond  float64 `json:"bytes_per_second"`
	OpsPerSecond    float64 `json:"ops_per_second"`     // blocks, not batches
	LatencyUS       Latency `json:"latency_us"`         // of a batch
	CPUSecondsPerGB float64 `json:"cpu_seconds_per_gb"` // user and system; this process and a target it started
	Errors          uint64  `json:"errors"`             // failed batches, wrong content included

	// FirstError is the cause of the first failed batch.
	FirstError error `json:"-"`
}

// Latency holds percentiles in microseconds, exact to 2 %.
type Latency struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// WriteText writes the result for people.
func (r *Result) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%s %s, %s x %d, %d thread%s, %s
throughput   %s/s, %s ops/s
latency      p50 %s, p99 %s, p99.9 %s (of a batch)
CPU          %.3f s per GB
errors       %d
`,
		r.Transport, r.Op, Bytes(r.BlockBytes), r.Batch, r.Threads, plural(r.Threads), time.Duration(r.Seconds*float64(time.Second)).Round(time.Millisecond),
		decimal(r.BytesPerSecond), strconv.FormatFloat(r.OpsPerSecond, 'f', 0, 64),
		micros(r.LatencyUS.P50), micros(r.LatencyUS.P99), micros(r.LatencyUS.P999),
		r.CPUSecondsPerGB, r.Errors)
	if err == nil && r.FirstError != nil {
		_, err = fmt.Fprintf(w, "first error  %v\n", r.FirstError)
	}
	return err
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// Bytes writes a block size: 4 KiB, 1 MiB, 1000 B.
func Bytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n >= 1024 && n%1024 == 0 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatUint(n, 10) + " " + units[i]
}

// decimal writes an amount of bytes in units of 1000, as network rates are.
func decimal(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for n >= 1000 && i < len(units)-1 {
		n, i = n/1000, i+1
	}
	return strconv.FormatFloat(n, 'f', 2, 64) + " " + units[i]
}

func micros(us float64) string {
	if us < 1000 {
		return strconv.FormatFloat(us, 'f', 1, 64) + " us"
	}
	return strconv.FormatFloat(us/1000, 'f', 2, 64) + " ms"
}
