package transfer

import "testing"

func TestParseRPCMeta(t *testing.T) {
	for _, c := range []struct {
		doc  string
		want rpcMeta
		bad  bool
	}{
		{`{"ip_or_host_name":"127.0.0.1","rpc_port":16048}`, rpcMeta{"127.0.0.1", 16048}, false},
		{`{"ip_or_host_name":"127.0.0.1","rpc_port":15036}` + "\n", rpcMeta{"127.0.0.1", 15036}, false},
		{`{"rpc_port":16048.0,"x":[],"ip_or_host_name":"[::1]"}`, rpcMeta{"::1", 16048}, false},
		{`{"ip_or_host_name":"h","rpc_port":70000}`, rpcMeta{"h", 4464}, false},
		{`{"ip_or_host_name":"h","rpc_port":"1"}`, rpcMeta{}, true},
		{`{"ip_or_host_name":"h","rpc_port":-1}`, rpcMeta{}, true},
		{`{"ip_or_host_name":"h","rpc_port":0}`, rpcMeta{}, true},
		{`{"ip_or_host_name":"","rpc_port":1}`, rpcMeta{}, true},
		{`{"ip_or_host_name":"[]","rpc_port":1}`, rpcMeta{}, true},
		{`{"ip_or_host_name":[],"rpc_port":1}`, rpcMeta{}, true},
		{`{}`, rpcMeta{}, true},
		{`null`, rpcMeta{}, true},
		{`[]`, rpcMeta{}, true},
		{``, rpcMeta{}, true},
	} {
		m, err := parseRPCMeta([]byte(c.doc))
		if (err != nil) != c.bad || !c.bad && m != c.want {
			t.Errorf("%s: %+v, %v", c.doc, m, err)
		}
	}
	// The recorded documents, byte for byte.
	if got := string(rpcMeta{"127.0.0.1", 15648}.encode()); got != `{"ip_or_host_name":"127.0.0.1","rpc_port":15648}` {
		t.Error(got)
	}
}

func FuzzRPCMeta(f *testing.F) {
	f.Add([]byte(`{"ip_or_host_name":"127.0.0.1","rpc_port":16048}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseRPCMeta(b)
		if err != nil {
			return
		}
		if m.host == "" || m.port < 1 || m.port > 65535 {
			t.Fatalf("%+v", m)
		}
		again, err := parseRPCMeta(m.encode())
		if err != nil || again.port != m.port {
			t.Fatalf("%+v, %+v, %v", m, again, err)
		}
	})
}

func TestReason(t *testing.T) {
	if got := reason(ErrNoPath); got != "no_path" {
		t.Error(got)
	}
	if got := Code(nil); got != 0 {
		t.Error(got)
	}
}
