package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// read returns what is in a recording.
func read(t *testing.T, path string) []trace.Record {
	t.Helper()
	r, err := trace.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []trace.Record
	for {
		var rec trace.Record
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, rec)
	}
}

// store is a master with one segment of n bytes.
func store(t *testing.T, n uint64) *master.Service {
	t.Helper()
	c := master.DefaultConfig()
	c.LeaseTTL, c.FreeReserve = 0, 0
	s, err := master.New(master.Options{Config: c, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	client := wire.UUID{1, 2}
	g := wire.Segment{ID: wire.UUID{3, 4}, Name: "node:1", Base: 1 << 40, Size: n, TEEndpoint: "127.0.0.1:1", Protocol: "tcp"}
	var r wire.Result[wire.Void]
	s.ReMountSegment(&wire.ReMountSegmentRequest{Segments: []wire.Segment{g}, Client: client}, &r)
	if r.Code != wire.OK {
		t.Fatal(r.Code)
	}
	return s
}

func put(t *testing.T, s *master.Service, keys ...string) {
	t.Helper()
	start := wire.BatchPutStartRequest{Client: wire.UUID{1, 2}, Keys: keys, Config: wire.ReplicateConfig{Replicas: 1}, Tenant: "default"}
	end := wire.BatchPutEndRequest{Client: wire.UUID{1, 2}, Type: wire.ReplicaAll, Tenant: "default"}
	for _, k := range keys {
		start.Lengths = append(start.Lengths, 1024)
		end.Metas = append(end.Metas, wire.ObjectMeta{Key: k})
	}
	var placed []wire.Result[[]wire.Replica]
	s.BatchPutStart(&start, &placed)
	for i, r := range placed {
		if r.Code != wire.OK {
			t.Fatalf("put of %s: %v", keys[i], r.Code)
		}
	}
	var ended []wire.Result[wire.Void]
	s.BatchPutEnd(&end, &ended)
}

// What clients do is read back in the order of their keys.
func TestRecording(t *testing.T) {
	for _, name := range []string{"x.trace", "x.trace.zst", "x.trace.gz"} {
		t.Run(name, func(t *testing.T) {
			s := store(t, 4*1024)
			c := New(s, Options{Dir: t.TempDir(), PartBytes: 1 << 30, Parts: 2, Source: "test"})
			if err := c.Start(name); err != nil {
				t.Fatal(err)
			}
			if err := c.Start("y"); err == nil || !strings.Contains(err.Error(), "stop it first") {
				t.Errorf("a second recording: %v", err)
			}
			put(t, s, "a", "b")
			var yes []wire.Result[bool]
			s.BatchExistKey(&wire.KeysRequest{Keys: []string{"a", "b", "c"}, Tenant: "default"}, &yes)
			var lists []wire.Result[wire.ReplicaList]
			s.BatchGetReplicaList(&wire.KeysRequest{Keys: []string{"a", "b", "d"}, Tenant: "default"}, &lists)
			put(t, s, "c", "e", "f")
			var gone wire.Result[wire.Void]
			s.Remove(&wire.RemoveRequest{Key: "a", Tenant: "default"}, &gone)
			if gone.Code != wire.OK {
				t.Fatal(gone.Code)
			}
			st, err := c.Stop()
			if err != nil || st.Running || st.Dropped != 0 || st.Records == 0 {
				t.Fatalf("%+v, %v", st, err)
			}
			hash := map[uint64]string{0: "-"}
			for _, k := range []string{"a", "b", "c", "d", "e", "f"} {
				hash[eviction.KeyHash("default", k)] = k
			}
			var got []string
			for _, r := range read(t, st.File) {
				if r.Op == trace.Resize {
					continue
				}
				found := ""
				if r.Flags&trace.Found != 0 {
					found = "+"
				}
				got = append(got, fmt.Sprintf("%v%s %s<%s", r.Op, found, hash[r.Key], hash[r.Parent]))
			}
			want := "put a<- put b<a exist+ a<- exist+ b<a exist c<b get+ a<- get+ b<a get d<b evict b<- put c<- put e<c put f<e remove a<-"
			if s := strings.Join(got, " "); s != want {
				t.Errorf("recorded\n%s\nwant\n%s", s, want)
			}
			if _, err := c.Stop(); err == nil {
				t.Error("stopped twice")
			}
			if s.Policies()[0].Backlog != 0 {
				t.Error("events wait")
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	s := store(t, 1024)
	dir := t.TempDir()
	c := New(s, Options{Dir: dir, PartBytes: 1 << 20, Parts: 1})
	for _, name := range []string{"", "../x", "/etc/x", "a/b", ".hidden"} {
		if err := c.Start(name); err == nil || !strings.Contains(err.Error(), "plain file name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := New(s, Options{}).Start("x"); err == nil || !strings.Contains(err.Error(), "--record_dir") {
		t.Errorf("without a folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "there"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Start("there"); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A file that has grown is followed by the next part, the oldest parts go.
func TestRotation(t *testing.T) {
	f := &fakeStore{}
	dir := t.TempDir()
	c := New(f, Options{Dir: dir, PartBytes: 64 << 10, Parts: 2})
	if err := c.Start("x.trace"); err != nil {
		t.Fatal(err)
	}
	next := 0
	for range 24 {
		f.r.Offer(puts(4096, &next))
	}
	st, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if st.Part < 3 || st.Records+st.Dropped != uint64(next) {
		t.Errorf("%+v after %d events", st, next)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	last := read(t, filepath.Join(dir, fmt.Sprintf("x-%d.trace", st.Part)))
	if len(last) == 0 {
		last = read(t, filepath.Join(dir, fmt.Sprintf("x-%d.trace", st.Part-1)))
	}
	if st.Dropped == 0 && last[len(last)-1].TimeMS != uint64(next) {
		t.Errorf("the last record is of %d, want %d", last[len(last)-1].TimeMS, next)
	}
}

type fakeStore struct{ r master.Recorder }

func (f *fakeStore) Record(r master.Recorder) {
	if r != nil {
		f.r = r
	}
}

// When nobody writes, what does not fit the ring is dropped and counted, and Offer does not wait.
func TestFullRing(t *testing.T) {
	r, err := newRecorder(&New(&fakeStore{}, Options{PartBytes: 1 << 30}).o, "x")
	if err != nil {
		t.Fatal(err)
	}
	next := 0
	for r.dropped == 0 {
		if next > 1<<20 {
			t.Fatalf("%d events fit", next)
		}
		r.Offer(puts(1000, &next))
	}
	if len(r.full) != ringPieces {
		t.Errorf("dropped with %d of %d pieces in the ring", len(r.full), ringPieces)
	}
	if got := r.records + r.dropped + r.pending + uint64(len(r.call)); got != uint64(next) {
		t.Errorf("%d of %d events are accounted for: %+v", got, next, r.status())
	}
	// What is dropped are whole blocks: there is no trace of them in the file, and the rest can be read.
	dir := t.TempDir()
	r.path = filepath.Join(dir, "x")
	tp, err := newTape(r)
	if err != nil {
		t.Fatal(err)
	}
	close(r.quit)
	tp.run()
	if got := read(t, r.path); len(got) != int(r.records) || got[len(got)-1].TimeMS != uint64(next) || r.records+r.dropped != uint64(next) {
		t.Errorf("%d records in the file, the last of %d: %+v after %d", len(got), got[len(got)-1].TimeMS, r.status(), next)
	}
}

// puts is n events of calls of their own.
func puts(n int, next *int) []eviction.Event {
	events := make([]eviction.Event, n)
	for i := range events {
		*next++
		events[i] = eviction.Event{Kind: eviction.Insert, KeyHash: uint64(*next) * 0x9e3779b97f4a7c15, Size: 1024, NowMS: uint64(*next), Req: uint32(*next)}
	}
	return events
}

// A disk that fails ends the recording, not the store.
func TestWriteFails(t *testing.T) {
	f := &fakeStore{}
	c := New(f, Options{PartBytes: 1 << 30})
	path := filepath.Join(t.TempDir(), "x")
	r, err := newRecorder(&c.o, path)
	if err != nil {
		t.Fatal(err)
	}
	tp, err := newTape(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := tp.file.Close(); err != nil {
		t.Fatal(err)
	}
	next := 0
	r.Offer(puts(20_000, &next))
	tp.empty()
	r.Offer(puts(1000, &next))
	close(r.quit)
	tp.run()
	if st := r.status(); !strings.Contains(st.Error, "closed") || st.Records != 0 || st.Dropped != uint64(next) {
		t.Errorf("%+v after %d events", st, next)
	}
}

// A call that comes in pieces is one call.
func TestPieces(t *testing.T) {
	f := &fakeStore{}
	c := New(f, Options{Dir: t.TempDir(), PartBytes: 1 << 30, Parts: 1})
	if err := c.Start("x"); err != nil {
		t.Fatal(err)
	}
	for i := range 6 { // deepest first; the last two are another call
		f.r.Offer([]eviction.Event{{Kind: eviction.Insert, KeyHash: uint64(6 - i), Size: 1, Req: uint32(i/4) + 1}})
	}
	st, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range read(t, st.File) {
		got = append(got, fmt.Sprintf("%d<%d", r.Key, r.Parent))
	}
	if s := strings.Join(got, " "); s != "3<0 4<3 5<4 6<5 1<0 2<1" {
		t.Errorf("recorded %s", s)
	}
}
