package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Requests are encoded once. Only the sequence number and the keys change from one to the next, and they
// are written in place; so the generator costs little beside the system calls.

const keyBytes = 40

// keyAt writes key number n of a space: 40 hexadecimal digits that look random but for the space.
func keyAt(dst []byte, space uint32, n uint64) {
	_ = dst[keyBytes-1]
	hex64(dst, scramble(n))
	hex64(dst[16:], scramble(n^0x5bd1e995))
	for i := range 4 {
		b := byte(space >> (24 - 8*i))
		dst[32+2*i], dst[33+2*i] = hexDigits[b>>4], hexDigits[b&15]
	}
}

func keyString(space uint32, n uint64) string {
	var k [keyBytes]byte
	keyAt(k[:], space, n)
	return string(k[:])
}

const hexDigits = "0123456789abcdef"

func hex64(dst []byte, x uint64) {
	_ = dst[15]
	for i := 15; i >= 0; i-- {
		dst[i] = hexDigits[x&15]
		x >>= 4
	}
}

// scramble is the mixer of SplitMix64: one to one.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// storeRequest is one kind of request.
type storeRequest struct {
	frame  []byte                  // a whole request with room for the keys
	keyAt  []int                   // where they are
	code   uint32                  // type code of the answer
	list   bool                    // the answer is a list, one element for each key
	quick  func(value []byte) int  // length of a value that looks right; 0 if it does not
	verify func(body []byte) error // reads an answer as a client does
}

// newStoreRequest encodes a request whose keys are those of number 0 of space 0.
func newStoreRequest[Req, Resp any](m *wire.Method[Req, Resp], req *Req, keys int, quick func([]byte) int, check func(*Resp) error) (*storeRequest, error) {
	body, err := m.AppendRequest(nil, dialect, req, true)
	if err != nil {
		return nil, err
	}
	l, ok := m.Layout(dialect)
	if !ok {
		return nil, fmt.Errorf("%s: not in %s", m.Name(), dialect)
	}
	r := &storeRequest{frame: rpc.AppendRequest(nil, 0, m.ID(), body), code: l.ResponseCode, list: keys > 1, quick: quick}
	placeholder := []byte(keyString(0, 0))
	for at := 0; ; at++ {
		i := bytes.Index(r.frame[at:], placeholder)
		if i < 0 {
			break
		}
		at += i
		r.keyAt = append(r.keyAt, at)
	}
	if len(r.keyAt) != keys {
		return nil, fmt.Errorf("%s: %d keys found in the request, not %d", m.Name(), len(r.keyAt), keys)
	}
	r.verify = func(body []byte) error {
		var resp Resp
		if err := m.DecodeResponse(body, dialect, &resp, true); err != nil {
			return fmt.Errorf("%s: %w", m.Name(), err)
		}
		if err := check(&resp); err != nil {
			return fmt.Errorf("%s: %w", m.Name(), err)
		}
		return nil
	}
	return r, nil
}

// header is the part of an answer's header that matters.
type answerHeader struct {
	code byte
	seq  uint32
	size int // of the body, and of an attachment
}

func parseAnswer(b []byte) (h answerHeader, ok bool) {
	_ = b[rpc.ResponseHeaderSize-1]
	n := uint64(binary.LittleEndian.Uint32(b[8:])) + uint64(binary.LittleEndian.Uint32(b[12:]))
	return answerHeader{b[2], binary.LittleEndian.Uint32(b[4:]), int(n)}, b[0] == 0x15 && b[1] == 0 && n < 1<<30
}

// verifyEvery is how often an answer is read in full; the others are looked at.
const verifyEvery = 256

// check tells whether an answer is the expected one. The quick look is at the RPC error, the type code and
// the first bytes of the value, or of each value of a list whose values have one length.
func (r *storeRequest) check(h answerHeader, body []byte, full bool) error {
	if h.code != 0 {
		return fmt.Errorf("RPC error: %w", rpcError(h.code, body))
	}
	m, err := structpack.ParseHeader(body)
	if err != nil {
		return err
	}
	if full || m.Code != r.code || !r.looksRight(m.Payload, int(m.Width)) {
		return r.verify(body)
	}
	return nil
}

func (r *storeRequest) looksRight(p []byte, width int) bool {
	if !r.list {
		return r.quick(p) > 0
	}
	n := len(r.keyAt)
	if len(p) <= 1<<width || p[0] != byte(n) {
		return false
	}
	p = p[1<<width:]
	for range n {
		size := r.quick(p)
		if size == 0 || size > len(p) {
			return false
		}
		if size == anyLength {
			return true
		}
		p = p[size:]
	}
	return true
}

// anyLength is what quick looks answer that do not know a value's length.
const anyLength = 1

// succeeds looks at the flag that tells a value from an error.
func succeeds(p []byte) int {
	if len(p) > 0 && p[0] == 1 {
		return anyLength
	}
	return 0
}

// saysYes looks at a flag and a boolean.
func saysYes(p []byte) int {
	if len(p) > 1 && p[0] == 1 && p[1] == 1 {
		return 2
	}
	return 0
}

func rpcError(code byte, body []byte) error {
	v, err := structpack.DecodeAny(body, "")
	if err != nil {
		return fmt.Errorf("%s", rpc.Code(code))
	}
	return fmt.Errorf("%s: %v", rpc.Code(code), v)
}

var (
	errMissingKey = errors.New("a key that was put is not there")
	errNoReplica  = errors.New("no replica")
	errShortBatch = errors.New("fewer answers than keys")
)

// Checks of complete answers.

func found(r *wire.Result[bool]) error {
	switch {
	case r.Code != wire.OK:
		return r.Code
	case !r.Value:
		return errMissingKey
	}
	return nil
}

func listed(r *wire.Result[wire.ReplicaList]) error {
	switch {
	case r.Code != wire.OK:
		return r.Code
	case len(r.Value.Replicas) == 0:
		return errNoReplica
	}
	return nil
}

func placed(r *wire.Result[[]wire.Replica]) error {
	switch {
	case r.Code != wire.OK:
		return r.Code
	case len(r.Value) == 0:
		return errNoReplica
	}
	return nil
}

func succeeded[T any](r *wire.Result[T]) error {
	if r.Code != wire.OK {
		return r.Code
	}
	return nil
}

func each[T any](one func(*T) error) func(*[]T) error {
	return func(rs *[]T) error {
		if len(*rs) != batchKeys {
			return errShortBatch
		}
		for i := range *rs {
			if err := one(&(*rs)[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// storeRequests are all kinds; each connection has its own, because frames are changed in place.
type storeRequests struct {
	exist, get, putStart, putEnd, batchExist, batchGet, ping *storeRequest
}

func (s *storeClient) requests() (rs storeRequests, err error) {
	var errs [7]error
	k, keys := keyString(0, 0), make([]string, batchKeys)
	for i := range keys {
		keys[i] = k
	}
	one := &wire.KeyRequest{Key: k, Tenant: wire.DefaultTenant}
	many := &wire.KeysRequest{Keys: keys, Tenant: wire.DefaultTenant}
	rs.exist, errs[0] = newStoreRequest(wire.ExistKey, one, 1, saysYes, found)
	rs.get, errs[1] = newStoreRequest(wire.GetReplicaList, one, 1, succeeds, listed)
	rs.putStart, errs[2] = newStoreRequest(wire.PutStart, &wire.PutStartRequest{Client: s.id, Key: k, Length: uint64(s.o.Value),
		Config: s.config(), Tenant: wire.DefaultTenant}, 1, succeeds, placed)
	rs.putEnd, errs[3] = newStoreRequest(wire.PutEnd, &wire.PutEndRequest{Client: s.id, Meta: wire.ObjectMeta{Key: k}, Type: wire.ReplicaAll,
		Tenant: wire.DefaultTenant}, 1, succeeds, succeeded)
	rs.batchExist, errs[4] = newStoreRequest(wire.BatchExistKey, many, batchKeys, saysYes, each(found))
	rs.batchGet, errs[5] = newStoreRequest(wire.BatchGetReplicaList, many, batchKeys, succeeds, each(listed))
	rs.ping, errs[6] = newStoreRequest(wire.Ping, &wire.ClientRequest{Client: s.id}, 0, succeeds, succeeded)
	return rs, errors.Join(errs[:]...)
}
