package rawte

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// The bytes of the protocol, by hand.
func TestBytes(t *testing.T) {
	if got, want := Frame(Probe, "{}\n"), []byte("\x04\x00\x00\x00\x00\x00\x00\x00\x03{}\n"); !bytes.Equal(got, want) {
		t.Errorf("frame %q, want %q", got, want)
	}
	typ, body, err := ReadFrame(bytes.NewReader(Frame(Notify, "x")))
	if typ != Notify || string(body) != "x" || err != nil {
		t.Errorf("%d %q %v", typ, body, err)
	}
	want := []byte("\x00\x10\x00\x00\x00\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01\x81\x00\x00\x00\x00\x00\x00\x00")
	if got := Header(Write|Ack, 0x0102030405060708, 4096); !bytes.Equal(got, want) {
		t.Errorf("header %q, want %q", got, want)
	}
	if err := ReadStatus(bytes.NewReader([]byte("\x00\x00\x00\x00VTCM"))); err != nil {
		t.Error(err)
	}
	var se *StatusError
	if err := ReadStatus(bytes.NewReader([]byte("\x01\x00\x00\x00VTCM"))); !errors.As(err, &se) || se.Code != Rejected {
		t.Error(err)
	}
	if err := ReadStatus(bytes.NewReader(make([]byte, 8))); err == nil || errors.As(err, &se) {
		t.Error(err)
	}
	if err := ReadStatus(bytes.NewReader(make([]byte, 7))); err == nil {
		t.Error("short status accepted")
	}
}

func TestCallAndData(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	defer func() { ln.Close(); <-served }()
	go func() {
		defer close(served)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if typ, _, err := ReadFrame(c); err == nil {
				c.Write(Frame(typ, `{"name":"n","buffers":[{"addr":18446744073709551614,"length":1}]}`))
			}
			c.Close()
		}
	}()
	d, err := Open(ln.Addr().String(), 10*time.Second)
	if err != nil || d.Name != "n" || d.Buffers[0].Addr != 1<<64-2 {
		t.Fatalf("%+v %v", d, err)
	}

	a, b := net.Pipe()
	data := &Data{a}
	go func() {
		buf := make([]byte, 24+3)
		b.Read(buf[:24])
		b.Read(buf[24:])
		b.Write([]byte("\x00\x00\x00\x00VTCM"))
		b.Read(buf[:24])
		b.Write([]byte("\x00\x00\x00\x00VTCM"))
		b.Write(buf[24:])
		b.Close()
	}()
	if err := data.WriteAt([]byte("abc"), 5); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 3)
	if err := data.ReadAt(got, 5); err != nil || string(got) != "abc" {
		t.Fatalf("%q %v", got, err)
	}
}

func TestGetKey(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RawQuery {
		case "key=mooncake%2Fram%2Fa%20b%40c_d~e.f-g%2B":
			io.WriteString(w, `{"name":"x"}`)
		case "key=broken":
			w.WriteHeader(http.StatusTeapot)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	meta := srv.URL + "/metadata"
	if d, err := Find(meta, "a b@c_d~e.f-g+", 10*time.Second); err != nil || d.Name != "x" {
		t.Errorf("%+v %v", d, err)
	}
	if _, err := GetKey(meta, "absent", 10*time.Second); !errors.Is(err, ErrNoKey) {
		t.Error(err)
	}
	if _, err := GetKey(meta, "broken", 10*time.Second); err == nil || errors.Is(err, ErrNoKey) {
		t.Error(err)
	}
	for _, meta := range []string{
		"redis://" + testenv.Redis(t).Addr,
		"etcd://" + testenv.Etcd(t).Addr,
	} {
		if _, err := GetKey(meta, "absent", 30*time.Second); !errors.Is(err, ErrNoKey) {
			t.Error(err)
		}
	}
}
