package node

import (
	"log/slog"

	"github.com/mooncake-agent/mooncake/core/config"
)

// reloader compares a new configuration with the running one and applies what can change live. It is
// used by one goroutine.
type reloader struct {
	*running
	started *config.Loaded // keys that need a restart run with these values
	last    *config.Loaded // live keys run with these
	load    func() (*config.Loaded, error)
	log     *slog.Logger
}

// reload is all or nothing: a configuration with any error changes nothing. Keys that need a restart
// are named at each reload until the file says the old value again.
func (r *reloader) reload(why string) {
	next, err := r.load()
	var plan *Plan
	if err == nil {
		plan, err = Resolve(next)
	}
	if err != nil {
		r.log.Error("reload refused, nothing was changed", "why", why, "error", err)
		return
	}
	live, _ := config.Diff(r.last, next)
	_, restart := config.Diff(r.started, next)
	for _, w := range plan.Warnings {
		r.log.Warn("configuration: " + w.String())
	}
	if err := r.logging.SetLevel(plan.Log.Level); err != nil {
		r.log.Error("reload: log level", "error", err) // cannot be: Resolve has checked it
	}
	r.admin.SetPprof(plan.Admin.Pprof)
	r.master.reload(plan.Eviction, plan.EvictionShared, live)
	for _, c := range live {
		r.log.Info("reload: changed", "key", c.Key, "old", c.Old, "new", c.New)
	}
	for _, c := range restart {
		r.log.Warn("reload: needs a restart", "key", c.Key, "running", c.Old, "file", c.New)
	}
	if len(live)+len(restart) == 0 {
		r.log.Info("reload: nothing changed", "why", why)
	}
	r.last = next
}
