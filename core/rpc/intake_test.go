package rpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// answerFrame is an answer with an attachment.
func answerFrame(seq uint32, body, attachment []byte) []byte {
	b := []byte{0x15, 0, 0, 0}
	b = binary.LittleEndian.AppendUint32(b, seq)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(attachment)))
	return slices.Concat(b, body, attachment)
}

type taken struct {
	seq  uint32
	body []byte
}

// feed gives stream to an intake in pieces of the sizes that cut says, in turn.
func feed(in *intake, stream []byte, limit uint64, cut []byte) (out []taken, err error) {
	for i := 0; len(stream) > 0; i++ {
		room := in.room()
		n := min(len(room), len(stream))
		if len(cut) > 0 {
			n = min(n, int(cut[i%len(cut)])+1)
		}
		copy(room, stream[:n])
		stream = stream[n:]
		in.add(n)
		for {
			h, body, ok, err := in.next(limit)
			if err != nil {
				return out, err
			}
			if !ok {
				break
			}
			out = append(out, taken{h.seq, body})
		}
	}
	return out, nil
}

func TestIntake(t *testing.T) {
	want := []taken{{1, []byte("abc")}, {2, nil}, {3, bytes.Repeat([]byte("x"), 3*bodyChunk+17)}, {4, bytes.Repeat([]byte("y"), 100)}, {5, []byte("end")}}
	var stream []byte
	for i, w := range want {
		stream = append(stream, answerFrame(w.seq, w.body, bytes.Repeat([]byte("a"), i*50))...)
	}
	for _, buffer := range []int{ResponseHeaderSize, 64, clientReadBuffer} {
		for _, cut := range [][]byte{nil, {0}, {15}, {255, 3, 100}} {
			got, err := feed(&intake{buf: make([]byte, buffer)}, stream, 1<<30, cut)
			if err != nil || len(got) != len(want) {
				t.Fatalf("buffer of %d, pieces %v: %d answers, %v", buffer, cut, len(got), err)
			}
			for i := range want {
				if got[i].seq != want[i].seq || !bytes.Equal(got[i].body, want[i].body) {
					t.Errorf("buffer of %d, pieces %v: answer %d: seq %d, %d bytes", buffer, cut, i, got[i].seq, len(got[i].body))
				}
			}
		}
	}
}

// The header of a large answer claims no more memory than a chunk.
func TestIntakeBelievesBytesOnly(t *testing.T) {
	in := intake{buf: make([]byte, 64)}
	if _, err := feed(&in, answerFrame(1, make([]byte, 1<<20), nil)[:ResponseHeaderSize], 1<<30, nil); err != nil {
		t.Fatal(err)
	}
	huge := answerFrame(1, nil, nil)
	binary.LittleEndian.PutUint32(huge[8:], 1<<29)
	in = intake{buf: make([]byte, 64)}
	if _, err := feed(&in, huge, 1<<30, nil); err != nil || cap(in.body) > bodyChunk {
		t.Errorf("%d bytes for a header of half a GiB, %v", cap(in.body), err)
	}
	in = intake{buf: make([]byte, 64)}
	if _, err := feed(&in, huge, 1<<20, nil); !errors.Is(err, ErrBadAnswer) {
		t.Errorf("above the limit: %v", err)
	}
	if _, err := feed(&intake{buf: make([]byte, 64)}, []byte("HTTP/1.1 400 Bad Request\r\n"), 1<<20, nil); !errors.Is(err, ErrBadAnswer) {
		t.Errorf("something else: %v", err)
	}
}

// FuzzIntake: however a stream is cut, the same answers come of it.
func FuzzIntake(f *testing.F) {
	f.Add(answerFrame(1, []byte("abc"), []byte("x")), []byte{0})
	f.Add(slices.Concat(answerFrame(1, nil, nil), answerFrame(2, make([]byte, 300), make([]byte, 40)), []byte{0x15}), []byte{7, 200})
	f.Fuzz(func(t *testing.T, stream, cut []byte) {
		const limit = 1 << 16
		whole, err := feed(&intake{buf: make([]byte, clientReadBuffer)}, stream, limit, nil)
		parts, err2 := feed(&intake{buf: make([]byte, 32)}, stream, limit, cut)
		if (err == nil) != (err2 == nil) || len(whole) != len(parts) {
			t.Fatalf("%d answers, %v; in pieces %d, %v", len(whole), err, len(parts), err2)
		}
		for i := range whole {
			if whole[i].seq != parts[i].seq || !bytes.Equal(whole[i].body, parts[i].body) {
				t.Errorf("answer %d differs", i)
			}
		}
	})
}
