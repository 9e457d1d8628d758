package tcp

import "encoding/binary"

// The wire format is upstream's (mooncake-transfer-engine/src/transport/tcp_transport, and the byte
// transcripts in testdata): little endian, a 24-byte request header, then with a WRITE the payload.
// With the flag v2 in the opcode the server answers each request with an 8-byte status frame: before
// the payload of a READ, after the payload of a WRITE was stored.
const (
	headerLen = 24
	statusLen = 8

	opRead      = 0
	opWrite     = 1
	flagV2      = 0x80
	statusMagic = 0x4D435456 // high half of a status frame

	statusOK       = 0
	statusRejected = 1 // the address range is not (or no longer) usable
)

// header is one request. Padding is ignored when read and zero when written.
type header struct {
	size uint64 // bytes to move
	addr uint64 // absolute address at the server
	op   byte
}

func parseHeader(b []byte) header {
	_ = b[headerLen-1]
	return header{size: binary.LittleEndian.Uint64(b), addr: binary.LittleEndian.Uint64(b[8:]), op: b[16]}
}

func (h header) put(b []byte) {
	_ = b[headerLen-1]
	binary.LittleEndian.PutUint64(b, h.size)
	binary.LittleEndian.PutUint64(b[8:], h.addr)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.op))
}

func (h header) v2() bool { return h.op&flagV2 != 0 }

// write tells the direction: 1 is WRITE and every other value is READ, as upstream decides it.
func (h header) write() bool { return h.op&^flagV2 == opWrite }

// wraps tells whether the range ends beyond the address space.
func (h header) wraps() bool { return h.addr+h.size < h.addr }

func (h header) opName() string { return opName(h.write()) }

func opName(write bool) string {
	if write {
		return "write"
	}
	return "read"
}

func putStatus(b []byte, code uint32) {
	binary.LittleEndian.PutUint64(b, statusMagic<<32|uint64(code))
}

// parseStatus returns the code of a status frame; ok is false for bytes that are none.
func parseStatus(b []byte) (code uint32, ok bool) {
	v := binary.LittleEndian.Uint64(b)
	return uint32(v), v>>32 == statusMagic
}
