//go:build !noverbs

package ibv

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// layouts are the structures of layout.go with their names in C. Where C allocates them, or we pass only a pointer to
// the beginning, the size does not matter.
var layouts = []struct {
	c     string
	goes  reflect.Type
	sized bool
}{
	{"ibv_device", reflect.TypeFor[cDevice](), false},
	{"ibv_context", reflect.TypeFor[cContext](), false},
	{"ibv_context_ops", reflect.TypeFor[cContextOps](), true},
	{"ibv_device_attr", reflect.TypeFor[cDeviceAttr](), true},
	{"ibv_port_attr", reflect.TypeFor[cPortAttr](), true},
	{"ibv_gid_entry", reflect.TypeFor[cGIDEntry](), true},
	{"ibv_mr", reflect.TypeFor[cMR](), true},
	{"ibv_comp_channel", reflect.TypeFor[cCompChannel](), true},
	{"ibv_qp_cap", reflect.TypeFor[cQPCap](), true},
	{"ibv_qp_init_attr", reflect.TypeFor[cQPInitAttr](), true},
	{"ibv_global_route", reflect.TypeFor[cGlobalRoute](), true},
	{"ibv_ah_attr", reflect.TypeFor[cAHAttr](), true},
	{"ibv_qp_attr", reflect.TypeFor[cQPAttr](), true},
	{"ibv_qp", reflect.TypeFor[cQP](), false},
	{"ibv_sge", reflect.TypeFor[cSGE](), true},
	{"ibv_send_wr", reflect.TypeFor[cSendWR](), true},
	{"ibv_wc", reflect.TypeFor[cWC](), true},
	{"ibv_async_event", reflect.TypeFor[cAsyncEvent](), true},
}

// The values in package device that are given to the library as they are.
var constants = map[string]uint64{
	"IBV_ACCESS_LOCAL_WRITE":        uint64(device.AccessLocalWrite),
	"IBV_ACCESS_REMOTE_WRITE":       uint64(device.AccessRemoteWrite),
	"IBV_ACCESS_REMOTE_READ":        uint64(device.AccessRemoteRead),
	"IBV_ACCESS_REMOTE_ATOMIC":      uint64(device.AccessRemoteAtomic),
	"IBV_ACCESS_RELAXED_ORDERING":   uint64(device.AccessRelaxedOrdering),
	"IBV_PORT_DOWN":                 uint64(device.PortDown),
	"IBV_PORT_ACTIVE":               uint64(device.PortActive),
	"IBV_LINK_LAYER_INFINIBAND":     uint64(device.LinkInfiniBand),
	"IBV_LINK_LAYER_ETHERNET":       uint64(device.LinkEthernet),
	"IBV_MTU_4096":                  uint64(device.MTUOf(4096)),
	"IBV_GID_TYPE_ROCE_V1":          uint64(device.GIDRoCEv1),
	"IBV_GID_TYPE_ROCE_V2":          uint64(device.GIDRoCEv2),
	"IBV_WC_WR_FLUSH_ERR":           uint64(device.StatusFlushed),
	"IBV_WC_REM_ACCESS_ERR":         uint64(device.StatusRemoteAccess),
	"IBV_WC_RETRY_EXC_ERR":          uint64(device.StatusRetryExceeded),
	"IBV_WC_TM_RNDV_INCOMPLETE":     device.Statuses - 1,
	"IBV_EVENT_QP_FATAL":            uint64(device.EventQPFatal),
	"IBV_EVENT_DEVICE_FATAL":        uint64(device.EventDeviceFatal),
	"IBV_EVENT_PORT_ACTIVE":         uint64(device.EventPortActive),
	"IBV_EVENT_PORT_ERR":            uint64(device.EventPortError),
	"IBV_EVENT_QP_LAST_WQE_REACHED": uint64(device.EventQPLastWQE),
	"IBV_EVENT_GID_CHANGE":          uint64(device.EventGIDChange),
	"IBV_EVENT_WQ_FATAL":            uint64(device.EventWQFatal),
}

// What layout.go says about the structures and constants of verbs.h is what a C compiler finds there.
func TestLayoutIsThatOfTheHeader(t *testing.T) {
	cc := compiler(t)
	var src, want strings.Builder
	src.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n")
	line := func(what, c string, value any) {
		fmt.Fprintf(&src, "printf(\"%s %%llu\\n\", (unsigned long long)(%s));\n", what, c)
		fmt.Fprintf(&want, "%s %d\n", what, value)
	}
	fields := 0
	for _, l := range layouts {
		if l.sized {
			line("sizeof "+l.c, "sizeof(struct "+l.c+")", l.goes.Size())
		}
		for i := range l.goes.NumField() {
			f := l.goes.Field(i)
			c := f.Tag.Get("c")
			if c == "" {
				continue
			}
			fields++
			line(l.c+"."+c, "offsetof(struct "+l.c+", "+c+")", f.Offset)
			line("sizeof "+l.c+"."+c, "sizeof(((struct "+l.c+" *)0)->"+c+")", f.Type.Size())
		}
	}
	for name, value := range constantsOfLayout(t) {
		line(name, name, value)
	}
	for name, value := range constants {
		line(name, name, value)
	}
	src.WriteString("return 0;\n}\n")
	if fields < 100 {
		t.Fatalf("only %d fields compared", fields)
	}

	dir := t.TempDir()
	file, program := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(file, []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-w", "-o", program, file).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(string(out), "\n")
	for i, w := range strings.Split(want.String(), "\n") {
		if got[i] != w {
			t.Errorf("layout.go: %s, verbs.h: %s", w, got[i])
		}
	}
}

// constantsOfLayout are the constants of layout.go, each with its name in C as comment.
func constantsOfLayout(t *testing.T) map[string]uint64 {
	values := map[string]uint64{
		"qptRC": qptRC, "qpsInit": qpsInit, "qpsRTR": qpsRTR, "qpsRTS": qpsRTS, "qpsErr": qpsErr,
		"qpState": qpState, "qpAccessFlags": qpAccessFlags, "qpPKeyIndex": qpPKeyIndex, "qpPort": qpPort, "qpAV": qpAV,
		"qpPathMTU": qpPathMTU, "qpTimeout": qpTimeout, "qpRetryCount": qpRetryCount, "qpRNRRetry": qpRNRRetry,
		"qpRecvPSN": qpRecvPSN, "qpMaxReadOut": qpMaxReadOut, "qpMinRNRTimer": qpMinRNRTimer, "qpSendPSN": qpSendPSN,
		"qpMaxDestReads": qpMaxDestReads, "qpDestQP": qpDestQP, "wrWrite": wrWrite, "wrRead": wrRead, "sendSignaled": sendSignaled,
	}
	f, err := parser.ParseFile(token.NewFileSet(), "layout.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]uint64{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			s := s.(*ast.ValueSpec)
			v, ok := values[s.Names[0].Name]
			if !ok {
				t.Errorf("the test does not know the constant %s of layout.go", s.Names[0].Name)
				continue
			}
			found[strings.TrimSpace(s.Comment.Text())] = v
		}
	}
	if len(found) != len(values) {
		t.Errorf("layout.go has %d constants, the test knows %d", len(found), len(values))
	}
	return found
}

// compiler is a C compiler that finds verbs.h; the test is skipped where there is none.
func compiler(t testing.TB) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	cmd := exec.Command(cc, "-E", "-x", "c", "-")
	cmd.Stdin = strings.NewReader("#include <infiniband/verbs.h>\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		testenv.MustNotSkip(t, "a C compiler with <infiniband/verbs.h> (libibverbs-dev): %v: %.200s", err, out)
	}
	return cc
}
