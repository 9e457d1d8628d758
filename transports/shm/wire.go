package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/mooncake-agent/mooncake/transports"
)

// The protocol of the socket: one message a packet (SOCK_SEQPACKET), the type in its first byte, numbers
// little-endian, at most maxMessage bytes. I is the initiator (who connects), O the owner of the memory.
//
//	I hello    magic, version u16, instance of the wanted engine (text)
//	O offer    version u16; with the control memfd, whose first bytes hold the owner's token
//	I proof    the owner's token as read from the memfd; the initiator's own token is in the memfd by now
//	O welcome  the initiator's token as read from the memfd
//	O refuse   a reason for people, instead of offer or welcome
//	I lookup   seq, addr, len: which region holds this range?
//	O region   seq, id, addr, len, offset in the memfd, access u8; with the memfd
//	O none     seq, why u8, addr, len of the range for which that holds
//	O drop     id: the region is being unregistered
//	I ack      id: nothing touches it any more and it is not mapped any more
//
// The end of the stream is the end of all regions: the initiator closes its side when it has let go of
// the memory, and only that counts for the owner.
const (
	msgHello byte = iota + 1
	msgOffer
	msgProof
	msgWelcome
	msgRefuse
	msgLookup
	msgRegion
	msgNone
	msgDrop
	msgAck
)

const (
	protoVersion = 1
	magic        = "MCAshm"
	tokenLen     = 32
	maxMessage   = 256
)

// Why a lookup finds nothing.
const (
	whyUnknown      byte = 1 // not registered
	whyNotShareable byte = 2 // registered, but its memory cannot be handed over
)

// message is any message; its type says which fields count.
type message struct {
	typ     byte
	version uint16
	text    string
	token   [tokenLen]byte
	seq, id uint64
	addr    uint64
	len     uint64
	off     uint64
	flags   byte // access of a region, reason of a none
}

// words returns the numbers of a message in wire order.
func (m *message) words() []*uint64 {
	switch m.typ {
	case msgLookup:
		return []*uint64{&m.seq, &m.addr, &m.len}
	case msgRegion:
		return []*uint64{&m.seq, &m.id, &m.addr, &m.len, &m.off}
	case msgNone:
		return []*uint64{&m.seq, &m.addr, &m.len}
	case msgDrop, msgAck:
		return []*uint64{&m.id}
	}
	return nil
}

func (m *message) append(b []byte) []byte {
	b = append(b, m.typ)
	switch m.typ {
	case msgHello:
		b = append(b, magic...)
		b = append(binary.LittleEndian.AppendUint16(b, m.version), m.text...)
	case msgOffer:
		b = binary.LittleEndian.AppendUint16(b, m.version)
	case msgProof, msgWelcome:
		b = append(b, m.token[:]...)
	case msgRefuse:
		b = append(b, m.text[:min(len(m.text), maxMessage-1)]...)
	}
	for _, w := range m.words() {
		b = binary.LittleEndian.AppendUint64(b, *w)
	}
	if m.typ == msgRegion || m.typ == msgNone {
		b = append(b, m.flags)
	}
	return b
}

// parseMessage decodes one packet of a peer. Errors wrap transports.ErrProtocol.
func parseMessage(b []byte) (m message, err error) {
	bad := func(what string) (message, error) {
		return message{}, fmt.Errorf("shm: message of %d bytes, %s: %w", len(b), what, transports.ErrProtocol)
	}
	if len(b) == 0 || len(b) > maxMessage {
		return bad("length out of bounds")
	}
	m.typ = b[0]
	rest := b[1:]
	switch m.typ {
	case msgHello:
		if len(rest) < len(magic)+2 || string(rest[:len(magic)]) != magic {
			return bad("not a hello")
		}
		rest = rest[len(magic):]
		m.version, m.text = binary.LittleEndian.Uint16(rest), string(rest[2:])
		return m, nil
	case msgOffer:
		if len(rest) != 2 {
			return bad("not an offer")
		}
		m.version = binary.LittleEndian.Uint16(rest)
		return m, nil
	case msgProof, msgWelcome:
		if copy(m.token[:], rest) != tokenLen || len(rest) != tokenLen {
			return bad("not a token")
		}
		return m, nil
	case msgRefuse:
		m.text = string(rest)
		return m, nil
	case msgLookup, msgRegion, msgNone, msgDrop, msgAck:
	default:
		return bad(fmt.Sprintf("unknown type %d", m.typ))
	}
	words := m.words()
	size := 8 * len(words)
	if m.typ == msgRegion || m.typ == msgNone {
		size++
	}
	if len(rest) != size {
		return bad(fmt.Sprintf("wrong length for type %d", m.typ))
	}
	for i, w := range words {
		*w = binary.LittleEndian.Uint64(rest[8*i:])
	}
	if size%8 != 0 {
		m.flags = rest[size-1]
	}
	if m.typ != msgDrop && m.typ != msgAck && (m.len == 0 || m.addr+m.len < m.addr || m.off+m.len < m.off) {
		return bad("a range that wraps around")
	}
	return m, nil
}
