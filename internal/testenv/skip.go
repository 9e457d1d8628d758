package testenv

import (
	"fmt"
	"os"
	"testing"
)

// CI tells whether a missing piece is a failure (environment CI=true or CI=1) instead of a skip.
func CI() bool {
	v := os.Getenv("CI")
	return v == "true" || v == "1"
}

// MustNotSkip ends the test because something it needs is missing here: as a skip that names the
// thing, or as a failure under CI=true. "make test" repeats all skips in its last lines.
func MustNotSkip(t testing.TB, format string, args ...any) {
	t.Helper()
	msg := fmt.Sprintf(format, args...)
	if CI() {
		t.Fatalf("needed under CI=true: %s", msg)
	}
	t.Skipf("skipped: %s", msg)
}
