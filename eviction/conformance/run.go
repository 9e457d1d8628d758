package conformance

import (
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/internal/conform"
)

// Outcome of one check.
type Outcome struct {
	Name     string   `json:"name"`
	Failures []string `json:"failures,omitempty"` // none: it passed
}

// All are all checks, for those who have no tool of their own to drive [Model].
func All() []Check { return append([]Check{{"anything in any order", modelRuns}}, Checks()...) }

// Run runs every check outside of go test. done, if not nil, is called after each.
func Run(f eviction.Factory, o Options, done func(Outcome)) []Outcome {
	var out []Outcome
	for _, c := range All() {
		r := Outcome{c.Name, Failures(func(t T) { c.Run(t, f, o) })}
		out = append(out, r)
		if done != nil {
			done(r)
		}
	}
	return out
}

// Failures runs one check and returns what it found. A panic is a failure too.
func Failures(check func(T)) []string {
	return conform.Run("", 0, func(t conform.T) { check(t) }).Failures
}
