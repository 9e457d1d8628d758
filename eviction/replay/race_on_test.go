//go:build race

package replay

import "testing"

// long skips a test of one goroutine's arithmetic, which takes minutes under the race detector and shows it nothing.
func long(t *testing.T) {
	t.Helper()
	t.Skip("long and single-threaded: runs without -race only")
}
