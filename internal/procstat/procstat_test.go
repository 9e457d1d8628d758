package procstat

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestOwnProcess(t *testing.T) {
	before, err := Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	busy, err := Busy()
	if err != nil {
		t.Fatal(err)
	}
	for {
		now, err := Read(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if now.CPU-before.CPU >= 30*time.Millisecond {
			break
		}
	}
	after, err := Busy()
	if err != nil {
		t.Fatal(err)
	}
	// The two clocks are sampled apart from each other.
	if before.RSS < 1<<20 || before.RSS > 1<<36 || after-busy < 10*time.Millisecond {
		t.Errorf("%d bytes resident; the machine worked %v while we used 30 ms", before.RSS, after-busy)
	}
	if m := Machine(2); !strings.Contains(m, ", 2 cores, Linux ") {
		t.Error(m)
	}
}

func TestNoProcess(t *testing.T) {
	if _, err := Read(1 << 30); err == nil {
		t.Error("read a process that cannot exist")
	}
}

func TestParse(t *testing.T) {
	p, err := parseProcess("12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 19 20 3 22")
	if err != nil || p.CPU != 2*time.Second || p.RSS != 3*uint64(os.Getpagesize()) {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"", "12 (x) S 1", "12 (a) S 1 2 3 4 5 6 7 8 9 10 x 50 13 14 15 16 17 18 19 20 3 22"} {
		if p, err := parseProcess(bad); err == nil {
			t.Errorf("%q: %+v", bad, p)
		}
	}
	d, err := parseBusy("cpu  100 10 50 9999 77 3 2 1000 5 6\ncpu0 1 2 3\n")
	if err != nil || d != 1650*time.Millisecond {
		t.Errorf("busy %v, %v", d, err)
	}
	for _, bad := range []string{"", "intr 1 2 3 4 5 6 7 8", "cpu 1 2 x 4 5 6 7 8"} {
		if d, err := parseBusy(bad); err == nil {
			t.Errorf("%q: %v", bad, d)
		}
	}
}
