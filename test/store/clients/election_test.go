package clients

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// Upstream's masters elect one of them in etcd; it is killed. A node of ours and the command line follow to the next
// one, which starts empty, as upstream's do, and the node's memory is used again.
func TestMastersElect(t *testing.T) {
	t.Parallel()
	etcd := testenv.Etcd(t)
	where := "etcd://" + etcd.Addr
	flags := []string{"--enable_ha=true", "--etcd_endpoints=" + etcd.Addr, "--cluster_id=pool"}
	first := startElected(t, flags...)
	n := testenv.StartNode(t, testenv.Config{"master_server_address": where, "global_segment_size": "64MB",
		"store": map[string]any{"cluster_id": "pool"}})
	waitSegment(t, n.Admin)

	kv := func(stdin string, args ...string) (string, error) {
		cmd := exec.Command(testenv.Mooncake(t), append([]string{"kv"}, append(args, "--master", where)...)...)
		cmd.Env = append(cmd.Environ(), "MC_STORE_CLUSTER_ID=pool")
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("mooncake kv %v: %w: %s", args, err, out)
		}
		return string(out), err
	}
	if _, err := kv("before", "put", "k"); err != nil {
		t.Fatal(err)
	}
	if got, err := kv("", "get", "k"); err != nil || got != "before" {
		t.Fatalf("%q, %v", got, err)
	}

	first.Kill()
	second := startElected(t, flags...) // in charge when the first one's lease has ended
	waitSegment(t, n.Admin)
	testenv.Eventually(t, soon, func() error { _, err := kv("after", "put", "k"); return err })
	if got, err := kv("", "get", "k"); err != nil || got != "after" {
		t.Fatalf("%q, %v", got, err)
	}
	c := goClient(t, second.Addr)
	if rs, err := c.Replicas(deadline(t), "k"); err != nil || len(rs) != 1 || rs[0].Endpoint != n.Segment {
		t.Errorf("replicas %+v, %v", rs, err)
	}
}

func startElected(t *testing.T, flags ...string) *testenv.StoreMaster {
	return testenv.StartWheelMaster(t, testenv.StoreWheel(t, newest), flags...)
}
