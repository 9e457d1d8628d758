package replay

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// oracleRecord is the size of one request in libCacheSim's oracleGeneral: u32 time in s, u64 object, u32 size, i64
// number of the next request of the object (-1 none), little-endian and without padding.
const oracleRecord = 24

func readOracle(name string, r io.Reader, b *Builder) error {
	var rec [oracleRecord]byte
	in := bufio.NewReaderSize(r, 1<<16)
	names, sizes := make([]uint64, 1), make([]uint64, 1)
	for n := 1; ; n++ {
		if k, err := io.ReadFull(in, rec[:]); err != nil {
			switch {
			case k == 0 && err == io.EOF:
				return nil
			case errors.Is(err, io.ErrUnexpectedEOF):
				return fmt.Errorf("%s: record %d: %s: %d bytes at the end, want %d: %w", name, n, Oracle, k, oracleRecord, ErrTrace)
			}
			return fmt.Errorf("%s: record %d: %s: %w", name, n, Oracle, err)
		}
		names[0] = binary.LittleEndian.Uint64(rec[4:])
		sizes[0] = max(1, uint64(binary.LittleEndian.Uint32(rec[12:])))
		q := Request{TimeMS: 1000 * uint64(binary.LittleEndian.Uint32(rec[:]))}
		if err := b.AddRequest(q, names, sizes); err != nil {
			return fmt.Errorf("%s: record %d: %s: %w", name, n, Oracle, err)
		}
	}
}

// writeOracle writes one record a block, chains from the first to the deepest.
func writeOracle(w io.Writer, t *Trace) error {
	next := make([]int64, len(t.blocks))
	last := make([]int64, t.Unique())
	for id := range last {
		last[id] = -1
	}
	at := make([]int64, len(t.Requests)) // number of the first record of each request
	n := int64(0)
	for i := range t.Requests {
		at[i] = n
		if t.Requests[i].Kind == Wanted {
			n += int64(t.Requests[i].n)
		}
	}
	for i := len(t.Requests) - 1; i >= 0; i-- {
		r := &t.Requests[i]
		if r.Kind != Wanted {
			continue
		}
		for k, id := range t.Blocks(i) {
			next[int(r.first)+k], last[id] = last[id], at[i]+int64(k)
		}
	}
	out := bufio.NewWriterSize(w, 1<<16)
	start := t.start()
	var rec []byte
	for i := range t.Requests {
		r := &t.Requests[i]
		if r.Kind != Wanted {
			continue
		}
		for k, id := range t.Blocks(i) {
			s := (r.TimeMS - start) / 1000
			if s > math.MaxUint32 || t.Size(id) > math.MaxUint32 {
				return fmt.Errorf("%s: request %d: time %d s or size %d does not fit into 32 bits: %w", t.Name, i, s, t.Size(id), ErrTrace)
			}
			rec = binary.LittleEndian.AppendUint32(rec[:0], uint32(s))
			rec = binary.LittleEndian.AppendUint64(rec, t.names[id])
			rec = binary.LittleEndian.AppendUint32(rec, uint32(t.Size(id)))
			rec = binary.LittleEndian.AppendUint64(rec, uint64(next[int(r.first)+k]))
			if _, err := out.Write(rec); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

// start is the time of the first request.
func (t *Trace) start() uint64 {
	if len(t.Requests) == 0 {
		return 0
	}
	return t.Requests[0].TimeMS
}
