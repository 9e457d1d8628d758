package store

import (
	"slices"
	"strings"
	"testing"
)

// intended are the answers of ours that differ from upstream's on purpose; docs/COMPATIBILITY.md says
// more. Each must occur: an entry that is no longer true fails the test.
var intended = []struct {
	recording, rpc, note string
	why                  string
}{
	{"session-1", "UpsertStart", "same size, in place", "a value with a read lease is not overwritten where it is (upsert_in_place)"},
	{"session-1", "UnmountSegment", "wrong client", "a segment is its owner's (compat_unowned_unmount)"},
	{"session-1", "RemoveAll", "all tenants", "the segment is still there, see above"},
	{"offload_bucket", "RemoveAll", "", "a put without room evicts what it needs, not a twentieth of all objects (eviction_mode)"},
}

// asUpstream are the switches that undo them.
var asUpstream = []string{"--upsert_in_place=always", "--compat_unowned_unmount=true", "--eviction_mode=watermark", "--probe_lease=upstream"}

// TestReplay sends what was recorded with upstream, frame by frame, and compares the answers.
func TestReplay(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			flags := slices.Clone(r.Flags)
			if upstream(t) {
				// Those of the recording itself are its defaults.
				flags = slices.DeleteFunc(flags, func(f string) bool { return f == "--default_kv_lease_ttl=5000" })
			}
			diffs := replay(t, &r, flags...)
			// Upstream's master evicts objects, any time from 10 ms on, after a put that is larger than its
			// segments; session-1 has one and must be quicker.
			for n := 1; upstream(t) && len(diffs) > 0 && n < 3; n++ {
				diffs = replay(t, &r, flags...)
			}
			for _, i := range intended {
				if i.recording != r.Name || upstream(t) {
					continue
				}
				at := slices.IndexFunc(diffs, func(d difference) bool { return d.frame.RPC == i.rpc && d.frame.Note == i.note })
				if at < 0 {
					t.Errorf("%s (%s) is as upstream's, but listed as intended to differ: %s", i.rpc, i.note, i.why)
					continue
				}
				t.Logf("intended: %v (%s)", diffs[at], i.why)
				diffs = slices.Delete(diffs, at, at+1)
			}
			for _, d := range diffs {
				t.Error(d)
			}
		})
	}
}

// TestReplayAsUpstream is TestReplay of what differs, with our switches for upstream's behaviour: nothing may.
func TestReplayAsUpstream(t *testing.T) {
	oursOnly(t, "has no such switches")
	for _, r := range recordings(t) {
		if !slices.ContainsFunc(intended, func(i struct{ recording, rpc, note, why string }) bool { return i.recording == r.Name }) {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			for _, d := range replay(t, &r, append(slices.Clone(r.Flags), asUpstream...)...) {
				t.Error(d)
			}
		})
	}
}

func replay(t *testing.T, r *recording, flags ...string) []difference {
	s := startServer(t, r.Release, flags...)
	p := &player{addr: s.addr(r.Release), kill: s.Kill, start: s.Start}
	return p.play(t, r)
}

// TestMatcher is about the comparison itself: what may differ and what may not.
func TestMatcher(t *testing.T) {
	rs := recordings(t)
	at := slices.IndexFunc(rs, func(r recording) bool { return r.Name == "session-1" })
	r := &rs[at]
	find := func(rpc, note string) *frame {
		i := slices.IndexFunc(r.Frames, func(f frame) bool { return f.RPC == rpc && f.Note == note })
		if i < 0 {
			t.Fatalf("no frame %s (%s)", rpc, note)
		}
		return &r.Frames[i]
	}
	mount, start, list := find("MountSegment", ""), find("PutStart", ""), find("GetReplicaList", "")
	edit := func(f *frame, old, new string) []byte {
		b := string(f.Response)
		if !strings.Contains(b, old) || len(old) != len(new) {
			t.Fatalf("%s: no %q in %q", f, old, b)
		}
		return []byte(strings.Replace(b, old, new, 1))
	}
	u64 := func(n uint64) string { return string(uuid{n}.bytes()[:8]) }
	other := *mount // the second segment of the session
	for i := range r.Frames {
		if f := &r.Frames[i]; f.RPC == "MountSegment" && strings.Contains(string(f.Request), "10.0.0.2:12345") {
			other = *f
		}
	}
	const hostB, hostA, nowhere = "10.0.0.2:15001", "10.0.0.1:15001", "10.0.0.9:15001"
	b := uint64(8589934592)
	for _, c := range []struct {
		name string
		f    *frame
		got  []byte
		ok   bool
	}{
		{"as recorded", start, start.Response, true},
		{"another place in the segment", start, edit(start, u64(b), u64(b+4096)), true},
		{"a place outside of the segment", start, edit(start, u64(b), u64(b+64*mib)), false},
		{"another segment without its address", start, edit(start, hostB, hostA), false},
		{"an unknown segment", start, edit(start, hostB, nowhere), false},
		{"another size", start, edit(start, u64(1000), u64(1001)), false},
		{"another replica id", start, edit(start, u64(1), u64(99)), true},
		{"another status", start, edit(start, "\x02\x00\x00\x00", "\x03\x00\x00\x00"), false},
		{"another type code", start, append(slices.Clone(start.Response[:16]), append([]byte{start.Response[16] ^ 4}, start.Response[17:]...)...), false},
		{"another sequence number", start, append(append(slices.Clone(start.Response[:4]), 0xff), start.Response[5:]...), false},
		{"read as recorded", list, list.Response, true},
		{"read elsewhere", list, edit(list, u64(b), u64(b+8192)), false},
		{"another lease", list, edit(list, u64(10000), u64(9999)), false},
		{"another checksum", list, edit(list, u64(3735928559), u64(1)), false},
	} {
		m := newMatcher(r)
		m.mounts(mount)
		m.mounts(&other)
		if c.f == list {
			if err := m.compare(start, start.Response); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.compare(c.f, c.got); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %v", c.name, err, c.ok)
		}
	}
}
