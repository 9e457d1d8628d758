package interop

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// What "make run" prints as the thing to try next works as it stands there.
func TestPrintedLinesOfPythonWork(t *testing.T) {
	for _, meta := range []testenv.Config{
		{"metadata_server": p2p},
		{"metadata_server": nil, "metadata": testenv.Config{"type": "memory"}, "metadata_http": testenv.Config{"listen": fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))}},
	} {
		path := testenv.WriteConfig(t, meta)
		cmd := testenv.NodeCommand(t, path)
		cmd.Args = append(cmd.Args, "--hints")
		n := testenv.StartNodeCmd(t, cmd, path)
		var program []string
		testenv.Eventually(t, soon, func() error {
			program = nil
			for line := range strings.SplitSeq(n.Stderr(), "\n") {
				if line = strings.TrimSpace(line); strings.HasPrefix(line, "from mooncake") || strings.HasPrefix(line, "e.") {
					program = append(program, line)
				}
			}
			if len(program) != 2 {
				return fmt.Errorf("%d lines of Python in\n%s", len(program), n.Stderr())
			}
			return nil
		})
		p := testenv.StartCmd(t, testenv.Wheel(t).Command("-c", strings.Join(program, "\n")))
		if err := p.Wait(soon); err != nil {
			t.Fatalf("%v\n%s", err, p.Stderr())
		}
		if got := p.Line(soon); got != "0" {
			t.Errorf("printed %q, want 0\n%s", got, p.Stderr())
		}
	}
}
