package telemetry

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Version tells what a binary was built from.
type Version struct {
	Version  string   `json:"version"`            // module version, "devel" for a build without one
	Commit   string   `json:"commit,omitempty"`   // full hash
	Modified bool     `json:"modified,omitempty"` // the work tree had changes
	Time     string   `json:"time,omitempty"`     // of the commit, RFC 3339
	Go       string   `json:"go"`
	OS       string   `json:"os"`
	Arch     string   `json:"arch"`
	Tags     []string `json:"tags,omitempty"` // build tags
}

// BuildVersion reads what the Go tool chain recorded in this binary.
func BuildVersion() Version {
	info, _ := debug.ReadBuildInfo()
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) Version {
	v := Version{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info == nil {
		return v
	}
	if m := info.Main.Version; m != "" && m != "(devel)" {
		v.Version = m
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		case "vcs.time":
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				v.Time = t.Format(time.RFC3339)
			}
		case "-tags":
			v.Tags = strings.FieldsFunc(s.Value, func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	return v
}

// String is the output of "mooncake version": one line.
func (v Version) String() string {
	s := "mooncake " + v.Version
	if v.Commit != "" {
		s += ", commit " + v.Commit[:min(len(v.Commit), 12)]
		if v.Modified {
			s += " with local changes"
		}
	}
	s += fmt.Sprintf(", %s, %s/%s", v.Go, v.OS, v.Arch)
	if len(v.Tags) > 0 {
		s += ", tags " + strings.Join(v.Tags, ",")
	}
	return s
}

// buildInfo is the metric mooncake_build_info: always 1, what matters are the labels.
func (v Version) buildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "mooncake_build_info",
		Help:        "What this binary was built from, in the labels; the value is always 1.",
		ConstLabels: prometheus.Labels{"version": v.Version, "commit": v.Commit, "go": v.Go},
	}, func() float64 { return 1 })
}
