package replay

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// mooncakeLine is one request of the traces that Mooncake published (FAST'25): hash_ids are 512-token blocks
// and one id stands for a block and its whole prefix.
type mooncakeLine struct {
	Timestamp *uint64  `json:"timestamp"` // ms
	Input     uint32   `json:"input_length"`
	Output    uint32   `json:"output_length"`
	HashIDs   []uint64 `json:"hash_ids"`
}

const (
	maxLine        = 64 << 20
	mooncakeTokens = 512
	bailianTokens  = 16
)

// ReadMooncake reads Mooncake JSONL. name is used in error messages, with the line.
func ReadMooncake(name string, r io.Reader) (*Trace, error) {
	return Read(name, r, ReadOptions{Format: Mooncake})
}

func readMooncake(name string, r io.Reader, b *Builder) error {
	b.tokens(mooncakeTokens)
	return eachLine(name, Mooncake, r, func(line []byte) error {
		var q mooncakeLine
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		if q.Timestamp == nil || q.HashIDs == nil {
			return fmt.Errorf("want an object with timestamp, input_length, output_length and hash_ids: %w", ErrTrace)
		}
		return b.Add(*q.Timestamp, q.Input, q.Output, q.HashIDs)
	})
}

// bailianLine is one request of the traces that Alibaba published of its Bailian service (ATC'25): hash_ids are
// 16-token blocks, each with its prefix. Chats are in the ids already, so they need no reading.
type bailianLine struct {
	ChatID    *int64   `json:"chat_id"`
	Parent    int64    `json:"parent_chat_id"`
	Timestamp *float64 `json:"timestamp"` // s
	Input     uint32   `json:"input_length"`
	Output    uint32   `json:"output_length"`
	Type      string   `json:"type"`
	Turn      int64    `json:"turn"`
	HashIDs   []uint64 `json:"hash_ids"`
}

func readBailian(name string, r io.Reader, b *Builder) error {
	b.tokens(bailianTokens)
	return eachLine(name, Bailian, r, func(line []byte) error {
		var q bailianLine
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		if q.ChatID == nil || q.Timestamp == nil || q.HashIDs == nil {
			return fmt.Errorf("want an object with chat_id, parent_chat_id, timestamp, input_length, output_length, type, turn and hash_ids: %w", ErrTrace)
		}
		ms, err := milliseconds(*q.Timestamp, 1000)
		if err != nil {
			return fmt.Errorf("timestamp: %w", err)
		}
		return b.Add(ms, q.Input, q.Output, q.HashIDs)
	})
}

// milliseconds converts a time of so many ms a unit.
func milliseconds(t, unit float64) (uint64, error) {
	ms := math.Round(t * unit)
	if !(ms >= 0 && ms < 1<<53) {
		return 0, fmt.Errorf("time %v is negative or too large: %w", t, ErrTrace)
	}
	return uint64(ms), nil
}

// tokens sets the tokens of a block that a format implies, if nobody said otherwise.
func (b *Builder) tokens(n uint32) {
	if b.t.BlockTokens == 0 {
		b.t.BlockTokens = n
	}
}

// writeMooncake writes one line a request.
func writeMooncake(w io.Writer, t *Trace) error {
	return writeLines(w, t, func(_ int, r *Request, names []uint64) any {
		return &mooncakeLine{&r.TimeMS, r.Tokens, r.Output, names}
	})
}

func writeBailian(w io.Writer, t *Trace) error {
	if t.BlockTokens != bailianTokens {
		return fmt.Errorf("%s: blocks have %d tokens, in this format they have %d: %w", t.Name, t.BlockTokens, bailianTokens, ErrTrace)
	}
	return writeLines(w, t, func(i int, r *Request, names []uint64) any {
		id, at := int64(i), float64(r.TimeMS)/1000
		return &bailianLine{&id, -1, &at, r.Tokens, r.Output, "text", 1, names}
	})
}

func writeLines(w io.Writer, t *Trace, line func(int, *Request, []uint64) any) error {
	out := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(out)
	names := []uint64{}
	for i := range t.Requests {
		r := &t.Requests[i]
		if r.Kind != Wanted {
			continue
		}
		names = t.appendNames(names[:0], i)
		if err := enc.Encode(line(i, r, names)); err != nil {
			return errors.Join(err, out.Flush())
		}
	}
	return out.Flush()
}

func (t *Trace) appendNames(dst []uint64, i int) []uint64 {
	for _, id := range t.Blocks(i) {
		dst = append(dst, t.names[id])
	}
	return dst
}
