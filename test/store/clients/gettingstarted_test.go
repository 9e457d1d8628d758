package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// docs/getting-started.md does what it says: its commands are run, in one shell, with other ports, the binary under
// test and an installed wheel in place of the first block.
func TestGettingStarted(t *testing.T) {
	root := testenv.RepoRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "getting-started.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for i, part := range strings.Split(string(text), "```sh\n") {
		if i == 0 {
			continue
		}
		block, _, ok := strings.Cut(part, "```")
		if !ok {
			t.Fatal("a block does not end")
		}
		blocks = append(blocks, block)
	}
	if len(blocks) < 8 || !strings.Contains(blocks[0], "make build") {
		t.Fatalf("%d blocks, the first: %s", len(blocks), blocks[0])
	}
	w := testenv.StoreWheel(t, newest)
	bin := t.TempDir()
	if err := os.Symlink(testenv.Mooncake(t), filepath.Join(bin, "mooncake")); err != nil {
		t.Fatal(err)
	}
	script := "set -eu\n" + strings.Join(blocks[1:], "\necho ---\n")
	master, admin := testenv.FreePort(t), testenv.FreePort(t)
	for from, to := range map[string]string{
		"127.0.0.1:50051": fmt.Sprintf("127.0.0.1:%d", master), "--port 50051": fmt.Sprintf("--port %d --metrics_host 127.0.0.1 --metrics_port %d", master, admin),
		"9004": fmt.Sprint(testenv.FreePort(t)), "9005": fmt.Sprint(testenv.FreePort(t)),
		"mooncake kv put story":      fmt.Sprintf("mooncake kv put --master 127.0.0.1:%d story", master),
		"mooncake kv get":            fmt.Sprintf("mooncake kv get --master 127.0.0.1:%d", master),
		"mooncake kv stat":           fmt.Sprintf("mooncake kv stat --master 127.0.0.1:%d", master),
		"~/mooncake-venv/bin/python": w.Python,
	} {
		script = strings.ReplaceAll(script, from, to)
	}
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(w.Env(), "PATH="+bin+":"+os.Getenv("PATH"))
	p := testenv.StartCmd(t, cmd)
	if err := p.Wait(soon); err != nil {
		logs := ""
		for _, f := range []string{"master.log", "a.log", "b.log", "python.log"} {
			b, _ := os.ReadFile(filepath.Join(cmd.Dir, f))
			logs += f + ":\n" + string(b)
		}
		t.Fatalf("%v\n%s\n%s", err, p.Stderr(), logs)
	}
	var out strings.Builder
	for {
		line, err := p.NextLine(soon)
		if err != nil {
			break
		}
		out.WriteString(line + "\n")
	}
	parts := strings.Split(out.String(), "---\n")
	for i, want := range map[int][]string{
		1: {`"mounted":true`, `"mounted":true`},
		2: {"1700000 bytes"},
		3: {"1700000 bytes", "replica ", "replica ", "Once upon a time "},
		4: {"Once upon a time "},
		5: {"1700000\n"},
		6: {"1700000 bytes", "replica "},
		7: {"replica ", "replica "},
	} {
		rest := ""
		if i < len(parts) {
			rest = parts[i]
		}
		for _, x := range want {
			at := strings.Index(rest, x)
			if at < 0 {
				t.Errorf("block %d printed no %q:\n%s", i+2, x, parts[min(i, len(parts)-1)])
				break
			}
			rest = rest[at+len(x):]
		}
	}
	if strings.Count(parts[min(6, len(parts)-1)], "replica ") != 1 {
		t.Errorf("replicas after the death of a node: %s", parts[min(6, len(parts)-1)])
	}
}
