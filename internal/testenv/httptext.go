package testenv

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

const maxText = 64 << 20 // no answer of a server under test is longer

func readAll(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxText))
	return string(b), err
}

// sumMetric adds up the samples of one metric in a text exposition.
func sumMetric(text, name string) (float64, error) {
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		if rest[0] == '{' {
			_, rest, ok = strings.Cut(rest, "} ")
			if !ok {
				continue
			}
		}
		f := strings.Fields(rest)
		if len(f) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("no metric %s", name)
	}
	return sum, nil
}
