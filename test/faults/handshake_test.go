package faults

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv/rawte"
)

// badFrames are handshake input that upstream's daemon refuses, or dies of.
func badFrames() map[string][]byte {
	length := func(n uint64, rest string) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), rest...) }
	f := map[string][]byte{
		"length 0":            length(0, ""),
		"length 1 MiB + 1":    length(1<<20+1, "\x01{}"),
		"length 2^63":         length(1<<63, "\x01{}"),
		"length 2^64-1":       length(1<<64-1, "\x01{}"),
		"header cut":          {1, 0, 0},
		"body cut":            length(100, "\x01{"),
		"no JSON":             rawte.Frame(rawte.Metadata, ""),
		"bad JSON":            rawte.Frame(rawte.Metadata, `{"name":`),
		"bad UTF-8":           rawte.Frame(rawte.Notify, "{\"name\":\"\xff\xfe\",\"notify_msg\":\"\xc0\x80\"}"),
		"HTTP":                []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"TLS":                 []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcdefgh"),
		"nested 1001 deep":    rawte.Frame(rawte.Probe, strings.Repeat("[", 1001)+strings.Repeat("]", 1001)),
		"nested 500,000 deep": rawte.Frame(rawte.Notify, strings.Repeat(`[`, 500_000)+strings.Repeat("]", 500_000)),
		"objects 100,000 deep": rawte.Frame(rawte.Connection,
			strings.Repeat(`{"a":`, 100_000)+"1"+strings.Repeat("}", 100_000)),
		"a number of 1 MB":     rawte.Frame(rawte.Connection, `{"local_lid":`+strings.Repeat("9", 1<<20-100)+"}"),
		"old protocol, cut":    length(50, `{"local_nic_path":`),
		"old protocol, [":      length(3, "[1]"),
		"qp_num of strings":    rawte.Frame(rawte.Connection, `{"qp_num":["1","2"]}`),
		"qp_num negative":      rawte.Frame(rawte.Connection, `{"qp_num":[-1]}`),
		"qp_num object":        rawte.Frame(rawte.Connection, `{"qp_num":{}}`),
		"nic path an array":    rawte.Frame(rawte.Connection, `{"local_nic_path":[],"peer_nic_path":{}}`),
		"lid a string":         rawte.Frame(rawte.Connection, `{"local_lid":"x","local_gid":7,"ready_ack":[]}`),
		"notify_rq_depth 2^40": rawte.Frame(rawte.Connection, `{"notify_rq_depth":1099511627776}`),
		"notify of arrays":     rawte.Frame(rawte.Notify, `{"name":[],"notify_msg":{}}`),
		"notify of numbers":    rawte.Frame(rawte.Notify, `{"name":1,"notify_msg":1e400}`),
	}
	for _, typ := range []byte{4, 5, 0x7f, 0x80, 0xfe, 0xff} {
		f["type "+string("0123456789abcdef"[typ>>4])+string("0123456789abcdef"[typ&15])] = rawte.Frame(typ, "{}\n")
	}
	for _, typ := range []byte{0, 1, 2, 3} {
		for _, body := range []string{"[]", "1", `"x"`, "null", "true", "{", "", "[[[[", "-", "\x00"} {
			f["type "+string('0'+typ)+" body "+body] = rawte.Frame(typ, body)
		}
	}
	return f
}

// No input may end the daemon or keep it from others. Each gets a reply or a closed connection.
func TestHandshakeSurvivesBadFrames(t *testing.T) {
	v := startVictim(t, nil)
	before := v.files()
	for name, frame := range badFrames() {
		c, err := rawte.Send(v.Segment, soon, frame)
		if err != nil {
			if !errors.Is(err, io.EOF) && !isReset(err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		c.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("%s: neither answered nor closed: %v", name, err)
		}
		c.Close()
		if err := v.tryServe(); err != nil {
			t.Fatalf("after %s: %v\n%s", name, err, v.Stderr())
		}
	}
	v.Alive(t)
	v.filesBackTo(before)
}

func isReset(err error) bool {
	var ne *net.OpError
	return errors.As(err, &ne) && !ne.Timeout() && !errors.Is(err, os.ErrDeadlineExceeded)
}

// Upstream's daemon serves one connection at a time, so that one silent client blocks all others
// for five seconds. Ours must not.
func TestHandshakeServesOthersBesideSilentClients(t *testing.T) {
	v := startVictim(t, nil)
	before := v.files()
	var silent []net.Conn
	for i := range 200 {
		frame := rawte.Frame(rawte.Metadata, "{}\n")
		// From nothing at all to everything but the last byte; some send all and never close.
		c, err := rawte.Send(v.Segment, soon, frame[:i%(len(frame)+1)])
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	for range 5 {
		v.serves()
	}
	for _, c := range silent {
		c.Close()
	}
	v.filesBackTo(before)
}

// What upstream's daemon accepts, ours does.
func TestHandshakeAcceptsWhatUpstreamDoes(t *testing.T) {
	v := startVictim(t, nil)
	for _, c := range []struct {
		name string
		typ  byte
		body string
		want string // part of the reply
	}{
		{"metadata with any object", rawte.Metadata, "{}", `"protocol":"tcp"`},
		{"metadata with an array", rawte.Metadata, "[1]", `"protocol":"tcp"`},
		{"metadata nested 1000 deep", rawte.Metadata, strings.Repeat("[", 1000) + strings.Repeat("]", 1000), `"protocol":"tcp"`},
		{"probe", rawte.Probe, "{}", `{"status":"success"}`},
		{"notify", rawte.Notify, `{"name":"a","notify_msg":"b"}`, `{"name":"","notify_msg":"success"}`},
		{"notify with a comment", rawte.Notify, `{"name":"a",/* x */"notify_msg":"b"}`, `"notify_msg":"success"`},
		{"connection", rawte.Connection, `{"local_nic_path":"x@y","peer_nic_path":"","qp_num":[1,2],"reply_msg":""}`, `"qp_num":[]`},
		{"exactly 1 MiB", rawte.Metadata, "{}" + strings.Repeat(" ", 1<<20-3), `"protocol":"tcp"`},
	} {
		reply, err := rawte.Call(v.Segment, soon, c.typ, c.body)
		if err != nil || !strings.Contains(reply, c.want) {
			t.Errorf("%s: %.300q, %v; want %s", c.name, reply, err, c.want)
		}
		if !strings.HasSuffix(reply, "\n") || !json.Valid([]byte(reply)) {
			t.Errorf("%s: reply is not one line of JSON: %.300q", c.name, reply)
		}
	}
	t.Run("old protocol", func(t *testing.T) {
		body := `{"local_nic_path":"","peer_nic_path":"","qp_num":[],"reply_msg":""}`
		c, err := rawte.Send(v.Segment, soon, append(binary.LittleEndian.AppendUint64(nil, uint64(len(body))), body...))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		first, rest, err := rawte.ReadFrame(c)
		if err != nil || first != '{' || !bytes.Contains(rest, []byte(`"qp_num"`)) {
			t.Errorf("reply %q%q, %v; want JSON without a type byte", first, rest, err)
		}
	})
	t.Run("byte by byte", func(t *testing.T) {
		c, err := rawte.Send(v.Segment, soon, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.(*net.TCPConn).SetNoDelay(true)
		for _, b := range rawte.Frame(rawte.Probe, "{}\n") {
			if _, err := c.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // so that each byte travels alone
		}
		if typ, reply, err := rawte.ReadFrame(c); err != nil || typ != rawte.Probe {
			t.Errorf("%d %q %v", typ, reply, err)
		}
	})
	v.serves()
}
