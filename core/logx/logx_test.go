package logx

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// clocked returns a limiter of one second and its clock.
func clocked() (*Limiter, *time.Time) {
	now := time.Unix(1000, 0)
	l := Every(time.Second)
	l.now = func() time.Time { return now }
	return l, &now
}

func TestOneLinePerWindowAndKey(t *testing.T) {
	l, now := clocked()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	say := func(key string) {
		l.Log(context.Background(), log, slog.LevelWarn, key, "refused", "peer", key)
	}
	for range 5 {
		say("a")
	}
	say("b")
	*now = now.Add(999 * time.Millisecond)
	say("a")
	*now = now.Add(time.Millisecond)
	say("a")
	say("b")
	*now = now.Add(time.Second)
	say("a")
	var got []string
	for line := range strings.Lines(out.String()) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), "msg=refused ")
		got = append(got, line)
	}
	if want := "peer=a|peer=b|peer=a dropped=5|peer=b|peer=a"; strings.Join(got, "|") != want {
		t.Errorf("lines %q, want %q", strings.Join(got, "|"), want)
	}
}

func TestDisabledLevelUsesNoWindow(t *testing.T) {
	l, _ := clocked()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	l.Log(context.Background(), log, slog.LevelDebug, "a", "hidden")
	l.Log(context.Background(), log, slog.LevelInfo, "a", "shown")
	if !strings.Contains(out.String(), "shown") || strings.Contains(out.String(), "hidden") {
		t.Errorf("log: %q", out.String())
	}
}

func TestKeysAreBounded(t *testing.T) {
	l, now := clocked()
	for i := range 3 * maxKeys {
		*now = now.Add(time.Microsecond)
		if _, ok := l.Allow(fmt.Sprint(i)); !ok {
			t.Fatalf("key %d was never logged", i)
		}
		if len(l.keys) > maxKeys {
			t.Fatalf("%d keys are kept", len(l.keys))
		}
	}
	if _, ok := l.Allow(fmt.Sprint(3*maxKeys - 1)); ok {
		t.Error("the newest key was forgotten")
	}
	*now = now.Add(time.Second)
	l.Allow("new")
	if len(l.keys) != 1 {
		t.Errorf("%d keys are kept after their windows, want 1", len(l.keys))
	}
}
