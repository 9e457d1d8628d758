package conform

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var _ T = (*testing.T)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		check   func(T)
		want    []string // beginnings of the failures
		skipped string
	}{
		"passes": {check: func(t T) { t.Helper() }},
		"errors": {check: func(t T) { t.Error("one ", 1); t.Errorf("two %d", 2) }, want: []string{"one 1", "two 2"}},
		"fatal":  {check: func(t T) { t.Fatal("stop"); t.Error("not reached") }, want: []string{"stop"}},
		"panic":  {check: func(T) { panic("oh") }, want: []string{"panic: oh"}},
		"skip":   {check: func(t T) { t.Skip("no ", "way"); t.Error("not reached") }, skipped: "no way"},
		"cleanups": {
			check: func(t T) {
				t.Cleanup(func() { t.Error("first in, last out") })
				t.Cleanup(func() { t.Fatal("a failed cleanup stops no other") })
				t.Cleanup(func() { panic("nor does a panic") })
				t.Fatalf("the check")
			},
			want: []string{"the check", "panic: nor does a panic", "a failed cleanup stops no other", "first in, last out"},
		},
		"many": {
			check: func(t T) {
				for i := range 100 {
					t.Errorf("%d", i)
				}
			},
			want: []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Run(name, time.Minute, c.check)
			same := slices.EqualFunc(o.Failures, c.want, strings.HasPrefix)
			if o.Name != name || !same || o.Skipped != c.skipped {
				t.Errorf("%+v, want failures %q", o, c.want)
			}
		})
	}
}

func TestACheckThatHangsIsLeftBehind(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{})
	o := Run("hangs", 10*time.Millisecond, func(t T) {
		t.Cleanup(func() { close(ended) })
		<-release
		t.Error("said too late")
	})
	if got := fmt.Sprint(o.Failures); got != "[not finished after 10ms]" {
		t.Error(got)
	}
	close(release)
	<-ended
}
