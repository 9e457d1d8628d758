package replay

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The compact form of a trace: the line compactMagic, then gzip over unsigned varints, column by column so that
// like compresses with like. A chain is stored as runs of consecutive ids, so that a conversation that goes on
// costs two numbers. It holds what Mooncake JSONL holds and is 25 times smaller; block names become dense ids.
//
//	count of requests, tokens in a block,
//	times (difference to the one before), input lengths (distance from the chain's full length, zigzag),
//	output lengths, runs of each chain, and for each run: first id (distance back from the largest so far, zigzag)
//	and length.
const compactMagic = "mooncake trace 1\n"

// WriteCompact writes t in the compact form. Tenants, sizes and requests of other kinds than Wanted are not in it.
func WriteCompact(w io.Writer, t *Trace) error {
	if _, err := io.WriteString(w, compactMagic); err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	var cols [6][]byte
	put := func(c int, v uint64) { cols[c] = binary.AppendUvarint(cols[c], v) }
	wanted := 0
	for i := range t.Requests {
		if t.Requests[i].Kind == Wanted {
			wanted++
		}
	}
	put(0, uint64(wanted))
	put(0, uint64(t.BlockTokens))
	last, top := uint64(0), int64(0)
	for i := range t.Requests {
		r := &t.Requests[i]
		chain := t.Blocks(i)
		if r.Kind != Wanted {
			continue
		}
		put(1, r.TimeMS-last)
		last = r.TimeMS
		cols[2] = binary.AppendVarint(cols[2], int64(r.n)*int64(t.BlockTokens)-int64(r.Tokens))
		put(3, uint64(r.Output))
		runs := 0
		for k := 0; k < len(chain); runs++ {
			end := k + 1
			for end < len(chain) && chain[end] == chain[end-1]+1 {
				end++
			}
			cols[5] = binary.AppendVarint(cols[5], top-int64(chain[k]))
			put(5, uint64(end-k))
			top = max(top, int64(chain[end-1])+1)
			k = end
		}
		put(4, uint64(runs))
	}
	for _, c := range cols {
		if _, err := z.Write(c); err != nil {
			return err
		}
	}
	return z.Close()
}

// ReadCompact reads the compact form. name is used in error messages.
func ReadCompact(name string, r io.Reader) (*Trace, error) {
	t, err := readCompact(name, r, 1<<32-1)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("%s: compact trace: %w", name, err)
	}
	return t, nil
}

func readCompact(name string, r io.Reader, maxAccesses int) (*Trace, error) {
	magic := make([]byte, len(compactMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != compactMagic {
		return nil, fmt.Errorf("it does not begin with %q: %w", compactMagic, ErrTrace)
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	in := &varints{r: bufio.NewReader(z)}
	n, blockTokens := in.next(1<<26), uint32(in.next(1<<20))
	requests := make([]Request, 0, min(n, 1<<16))
	last := uint64(0)
	for range n {
		last += in.next(1 << 40)
		requests = append(requests, Request{TimeMS: last})
		if in.err != nil {
			return nil, in.err
		}
	}
	lack := make([]int64, n)
	for i := range lack {
		lack[i] = in.signed(1 << 40)
	}
	for i := range requests {
		requests[i].Output = uint32(in.next(1<<32 - 1))
	}
	runs := make([]uint64, n)
	for i := range runs {
		runs[i] = in.next(1 << 20)
	}
	b := NewBuilder(name, blockTokens)
	top := int64(0)
	var names []uint64
	for i, q := range requests {
		names = names[:0]
		for range runs[i] {
			first := top - in.signed(1<<40)
			length := in.next(1 << 20)
			if in.err == nil && (first < 0 || len(names)+int(length) > 1<<22 || b.t.Accesses()+len(names)+int(length) > maxAccesses) {
				return nil, fmt.Errorf("request %d has a chain that is too long or begins before block 0: %w", i, ErrTrace)
			}
			if in.err != nil {
				return nil, in.err
			}
			for k := range length {
				names = append(names, uint64(first)+k)
			}
			top = max(top, first+int64(length))
		}
		tokens := int64(len(names))*int64(blockTokens) - lack[i]
		if in.err == nil && (tokens < 0 || tokens > 1<<32-1) {
			return nil, fmt.Errorf("request %d has %d tokens: %w", i, tokens, ErrTrace)
		}
		if err := b.Add(q.TimeMS, uint32(tokens), q.Output, names); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	if in.err != nil {
		return nil, in.err
	}
	if _, err := in.r.ReadByte(); err != io.EOF { // also checks gzip's sum
		return nil, fmt.Errorf("something follows the last request (%v): %w", err, ErrTrace)
	}
	return b.Trace(), nil
}

// varints reads bounded numbers and remembers the first error.
type varints struct {
	r   *bufio.Reader
	err error
}

func (v *varints) next(limit uint64) uint64 {
	if v.err != nil {
		return 0
	}
	x, err := binary.ReadUvarint(v.r)
	if err == nil && x > limit {
		x, err = 0, fmt.Errorf("number %d is larger than %d: %w", x, limit, ErrTrace)
	}
	v.err = err
	return x
}

func (v *varints) signed(limit int64) int64 {
	u := v.next(2 * uint64(limit))
	x := int64(u >> 1)
	if u&1 != 0 {
		x = ^x
	}
	return x
}
