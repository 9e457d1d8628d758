package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A file at the size limit is answered in bounded time, whatever is in it.
func TestLargestFiles(t *testing.T) {
	repeat := func(format string) string {
		var b strings.Builder
		for i := range maxKeys / 10 {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"unknown keys":     `{"x":1` + repeat(`,"k%d":1`) + `}`,
		"unknown in a map": `{"log":{"x":1` + repeat(`,"k%d":1`) + `}}`,
		"many instances":   `{"transports":{"tcp":{}` + repeat(`,"k%d":{"type":"tcp"}`) + `}}`,
		"many labels":      `{"transfer":{"labels":{"a":"b"` + repeat(`,"k%d":"v"`) + `}}}`,
		"many bad labels":  `{"transfer":{"labels":{"a":"b"` + repeat(`,"k%d":1`) + `}}}`,
		"more than enough": `{"transfer":{"peers":["a"` + strings.Repeat(`,"k"`, maxKeys) + `]}}`,
		"many peers":       `{"transfer":{"peers":["a"` + repeat(`,"k%d"`) + `]}}`,
		"one long key":     `{"` + strings.Repeat("k", MaxFileSize-100) + `":1}`,
		"one long value":   `{"local_hostname":"` + strings.Repeat("k", MaxFileSize-100) + `"}`,
		"brackets":         strings.Repeat("[", MaxFileSize-100),
		"braces":           strings.Repeat(`{"a":`, MaxFileSize/5-100),
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"c.json", "c.yaml"} {
				start := time.Now()
				_, msg := loadText(t, file, text)
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("%s took %v", file, took)
				}
				if n := strings.Count(msg, "\n"); n > maxProblems || len(msg) > 100_000 {
					t.Errorf("%s: %d lines, %d bytes", file, n+1, len(msg))
				}
				if want := refusedForSize[name]; !strings.Contains(msg, want) || (want == "") != (msg == "") {
					t.Errorf("%s: got %.300q, want %q", file, msg, want)
				}
			}
		})
	}
}

// What the messages contain, "" for a file that is fine.
var refusedForSize = map[string]string{
	"unknown keys":     "c.",
	"unknown in a map": "and at least 4901 more",
	"many bad labels":  "and at least 4900 more",
	"more than enough": "more than 50000 keys and list elements",
	"one long key":     "c.",
	"one long value":   "the host name is longer than 253 characters",
	"brackets":         "c.",
	"braces":           "c.",
}
