//go:build !race

package replay

import "testing"

func long(*testing.T) {}
