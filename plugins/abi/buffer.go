package abi

import "fmt"

// Buffer is the kind of buffer that policy_buffer is asked for.
type Buffer int32

// The kinds of buffer.
const (
	// BufferConfig holds the init header and the params after it. It is asked for before policy_init, all
	// others after it.
	BufferConfig Buffer = 0
	// BufferEvents holds records, written by the host.
	BufferEvents Buffer = 1
	// BufferVictims holds handles, written by policy_victims.
	BufferVictims Buffer = 2
	// BufferState holds what policy_save and policy_stats write and policy_load reads.
	BufferState Buffer = 3
	// BufferScores holds a float64 for each candidate, written by policy_score.
	BufferScores Buffer = 4
	// BufferAdmit holds a bit for each would-be INSERT, least significant first, written by policy_admit;
	// set means refuse.
	BufferAdmit Buffer = 5
)

var bufferNames = [...]string{"config", "events", "victims", "state", "scores", "admit"}

func (b Buffer) String() string {
	if b >= 0 && int(b) < len(bufferNames) {
		return bufferNames[b]
	}
	return fmt.Sprintf("buffer %d", int32(b))
}

// Align is the alignment in bytes that the buffer's address must have.
func (b Buffer) Align() uint32 {
	switch b {
	case BufferConfig, BufferEvents, BufferScores:
		return 8
	case BufferVictims:
		return 4
	}
	return 1
}

// Size is the number of bytes for n entries: bytes of params, records, handles, bytes of state, scores, or
// would-be INSERTs.
func (b Buffer) Size(n int) int {
	switch b {
	case BufferConfig:
		return HeaderSize + n
	case BufferEvents:
		return n * RecordSize
	case BufferVictims:
		return n * HandleSize
	case BufferScores:
		return n * ScoreSize
	case BufferAdmit:
		return (n + 7) / 8
	}
	return n
}

// CheckBuffer reports an address that policy_buffer must not return: 0, misaligned, or with less than size
// bytes before the end of a memory of that many bytes.
func CheckBuffer(b Buffer, addr, size uint32, memory uint64) error {
	switch {
	case addr == 0:
		return fmt.Errorf("abi: %s buffer: policy_buffer(%d, %d) returned 0", b, int32(b), size)
	case addr%b.Align() != 0:
		return fmt.Errorf("abi: %s buffer: address %d is not a multiple of %d", b, addr, b.Align())
	case uint64(addr)+uint64(size) > memory:
		return fmt.Errorf("abi: %s buffer: %d bytes at %d do not fit into the memory of %d bytes", b, size, addr, memory)
	}
	return nil
}
