// Package replay checks the promises about eviction with the command that users run: the figures of published
// simulators, what the Store promises with lru and with its default, and that nobody beats MIN.
package replay

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestAssertions(t *testing.T) {
	data := filepath.Join(testenv.RepoRoot(t), "eviction", "replay", "testdata")
	for _, name := range []string{"conversation", "synthetic"} {
		cmd := exec.CommandContext(t.Context(), testenv.Mooncake(t), "replay",
			"--trace", filepath.Join(data, name+".trace"), "--assert", "@"+filepath.Join(data, name+".assert"))
		cmd.Env = testenv.CleanEnv()
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		if err := cmd.Run(); err != nil || errOut.String() != "67 assertions hold\n" {
			t.Errorf("%s: %v\n%s%s", name, err, &errOut, &out)
		}
	}
}

// TestAssertionFails: a claim that does not hold ends with exit code 1 and says what was found.
func TestAssertionFails(t *testing.T) {
	trace := filepath.Join(testenv.RepoRoot(t), "eviction", "replay", "testdata", "synthetic.trace")
	cmd := exec.CommandContext(t.Context(), testenv.Mooncake(t), "replay", "--trace", trace, "--assert", "prefix(lru,1000) >= 8.5%")
	cmd.Env = testenv.CleanEnv()
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	err := cmd.Run()
	want := "mooncake: assertion failed: prefix(lru,1000) >= 8.5%: left side 0.0841176, right side 0.085\nmooncake: 1 of 1 assertions failed\n"
	if cmd.ProcessState.ExitCode() != 1 || errOut.String() != want {
		t.Errorf("%v\n got %q\nwant %q", err, errOut.String(), want)
	}
}
