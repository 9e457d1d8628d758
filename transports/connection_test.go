package transports

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConnection(t *testing.T) {
	c := &Connection{LocalNICPath: "a@b", PeerNICPath: "c@d", LocalGID: "00", LocalLID: 7, QPNum: []uint32{1, 4294967295}, HasReadyAck: true}
	want := `{"local_gid":"00","local_lid":7,"local_nic_path":"a@b","payload":"","peer_nic_path":"c@d","qp_num":[1,4294967295],"ready_ack":false,"reply_msg":""}`
	if got := string(c.Encode()); got != want {
		t.Fatal(got)
	}
	for _, mtu := range []uint32{0, 4096} {
		c.PathMTU = mtu
		back, err := ParseConnection(c.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, back); diff != "" {
			t.Fatal(diff)
		}
	}
	if _, err := ParseConnection([]byte(`{"qp_num":[` + strings.Repeat("1,", 5000) + `1]}`)); err == nil {
		t.Error("5001 queue pairs were taken")
	}
	for _, odd := range []string{`null`, `{}`, `{"local_gid":5,"local_lid":"x","qp_num":{"a":1},"ready_ack":7,"path_mtu":-1,"later":[{}]}`} {
		if c, err := ParseConnection([]byte(odd)); err != nil || c.LocalGID != "" || c.LocalLID != 0 || c.PathMTU != 0 || c.ReadyAck {
			t.Errorf("%s: %+v, %v", odd, c, err)
		}
	}
	for _, bad := range []string{``, `[]`, `5`, `{"qp_num":["a"]}`, `{"qp_num":[-1]}`, `{"local_nic_path":[]}`} {
		if c, err := ParseConnection([]byte(bad)); err == nil {
			t.Errorf("%s: %+v", bad, c)
		}
	}
}

func FuzzParseConnection(f *testing.F) {
	f.Add([]byte(`{"name":1,"qp_num":{"a":1},"local_lid":"x","ready_ack":true,"notify_rq_depth":70000,"path_mtu":4096}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseConnection(b)
		if err != nil {
			return
		}
		if _, err := ParseConnection(c.Encode()); err != nil {
			t.Fatal(err)
		}
	})
}
