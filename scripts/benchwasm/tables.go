package main

import (
	"fmt"
	"io"
	"strings"
)

// row collects the cells of a line and the first error among them.
type row struct {
	r     results
	cells []string
	err   error
}

func (w *row) text(s string) { w.cells = append(w.cells, s) }

// figure adds a figure in its own unit times scale.
func (w *row) figure(name, unit, format string, scale float64) float64 {
	v, err := w.r.of(name, unit)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.text(fmt.Sprintf(format, v*scale))
	return v
}

func (w *row) print(out io.Writer) error {
	if w.err != nil {
		return w.err
	}
	_, err := fmt.Fprintf(out, "| %s |\n", strings.Join(w.cells, " | "))
	return err
}

// baseline is the policy that others are compared with.
const baseline = "lru"

// guests are the rows of the store's table.
var guests = []string{"native", "lru", "lru-c", "lru-rust", "score-c", "bad=spin", "bad=spin_victims", "bad=slow", "bad=recurse", "bad=grab_memory", "bad=trap",
	"bad=too_many", "bad=unknown", "bad=duplicate", "bad=leased", "bad=none", "bad=moody"}

// writeStore shows reads and puts of a full store.
func writeStore(out io.Writer, r results) error {
	fmt.Fprint(out, "Two workers read 40,000 keys, half of the time an eighth of them; 20,000 objects fit, and what is not there is put. A bad guest that has\n"+
		"failed is set anew within 100 ms. `leased`, `none` and `moody` answer badly but do not fail, `grab_memory` has all that it may have from its first call on.\n"+
		"Goals against the built-in `lru`: p99 at most 1.5 times with any guest, throughput of the C LRU at least 0.9. Processor time is that of the whole\n"+
		"process for an operation. The workers call the store in its own process, without pause and with nothing kept free: so often is the reserve used up\n"+
		"before the guest has named more; those victims are the built-in LRU's (the last column).\n\n"+
		"| policy | operations/s | ratio | processor time | ratio | get p99 | ratio | put p99 | ratio | faults | by the built-in LRU |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, name := range guests {
		w := row{r: r}
		w.text(strings.Replace(name, "bad=", "bad guest: ", 1))
		for _, col := range []struct{ unit, format string }{{"ops/s", "%.0f"}, {"cpu-ns/op", "%.0f ns"}, {"get-p99-us", "%.1f us"}, {"put-p99-us", "%.1f us"}} {
			v := w.figure("Guests/"+name, col.unit, col.format, 1)
			base, err := r.of("Guests/"+baseline, col.unit)
			if err != nil {
				return err
			}
			w.text(fmt.Sprintf("%.2f", v/base))
		}
		w.figure("Guests/"+name, "faults", "%.0f", 1)
		w.figure("Guests/"+name, "%built-in", "%.0f %%", 1)
		if err := w.print(out); err != nil {
			return err
		}
	}
	return nil
}

// writeSlip shows how long other goroutines wait.
func writeSlip(out io.Writer, r results) error {
	fmt.Fprint(out, "The latest tick of a 10 ms ticker while a guest uses up its budget and the garbage collector runs all the time. In budgets above 20,000 units\n"+
		"a guest stops for the others after so many.\n\n"+
		"| guest | worst slip | goal |\n|---|---|---|\n")
	for _, g := range []struct{ name, what, goal string }{
		{"idle", "none", ""},
		{"spin", "endless loop in `policy_events`", "20 ms"},
		{"slow", "the same with loads that miss every cache", "20 ms"},
		{"slow-stats", "the same in `policy_stats` (5 M units)", "20 ms"},
		{"recurse", "endless recursion", "20 ms"},
		{"grab_memory", "all the memory there is", "20 ms"},
		{"init_spin", "endless loop in `policy_init` (50 M units)", "100 ms"},
		{"start_spin", "endless loop in the start function (50 M units)", "100 ms"},
		{"load-compile", "a module being compiled", "100 ms"},
	} {
		w := row{r: r}
		w.text(g.what)
		w.figure("TickerSlip/"+g.name, "worst-slip-ms", "%.0f ms", 1)
		w.text(g.goal)
		if err := w.print(out); err != nil {
			return err
		}
	}
	return nil
}

// writeSpeed shows what events, questions, replays and starts cost.
func writeSpeed(out io.Writer, r results) error {
	fmt.Fprint(out, "| LRU, best stretch | 4 k keys: guest, whole | 100 k | 1 M | instructions an event |\n|---|---|---|---|---|\n")
	for _, kind := range []struct{ name, what string }{{"metered", "C, metered (goal 60 ns in the guest)"}, {"unmetered", "C, not metered"}, {"native", "built-in"}} {
		w := row{r: r}
		w.text(kind.what)
		for _, keys := range []string{"4k", "100k", "1M"} {
			name := "Events/" + kind.name + "/keys=" + keys
			if kind.name == "native" {
				w.figure(name, "best-ns/event", "%.0f ns", 1)
				continue
			}
			guest := row{r: r}
			guest.figure(name, "best-guest-ns/event", "%.0f", 1)
			guest.figure(name, "best-ns/event", "%.0f ns", 1)
			w.text(strings.Join(guest.cells, ", "))
			if w.err == nil {
				w.err = guest.err
			}
		}
		if kind.name == "metered" {
			w.figure("Events/metered/keys=100k", "fuel/event", "%.0f", 1)
		} else {
			w.text("")
		}
		if err := w.print(out); err != nil {
			return err
		}
	}
	fmt.Fprint(out, "\n| | built-in | C LRU | score mode |\n|---|---|---|---|\n")
	w := row{r: r}
	w.text("32 victims named, 100 k keys")
	for _, name := range []string{"native", "lru", "score"} {
		w.figure("Victims/"+name, "ns/op", "%.2f us", 1e-3)
	}
	if err := w.print(out); err != nil {
		return err
	}
	w = row{r: r}
	w.text("replay of the conversation trace, 20,000 blocks (goal 1 M)")
	for _, name := range []string{"native", "lru.wasm", "score_lru.wasm"} {
		w.figure("Replay/"+name, "M/s", "%.1f M accesses/s", 1)
	}
	if err := w.print(out); err != nil {
		return err
	}
	fmt.Fprint(out, "\n| from file to factory | compiled anew | from the cache | a new instance |\n|---|---|---|---|\n")
	for _, g := range []struct{ name, what string }{{"lru-c", "C (goal 50 ms)"}, {"lru-as", "AssemblyScript"}, {"lru-rust", "Rust"}, {"lru-go", "Go (goals 2 s, 100 ms)"}} {
		w := row{r: r}
		w.text(g.what)
		for _, step := range []string{"cold", "cached", "instance"} {
			w.figure("Load/"+g.name+"/"+step, "ns/op", "%.1f ms", 1e-6)
		}
		if err := w.print(out); err != nil {
			return err
		}
	}
	return nil
}
