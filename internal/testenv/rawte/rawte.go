// Package rawte speaks the Transfer Engine's wire with nothing but sockets and encoding/binary. It
// is written from the protocol, shares no code with the engine it tests, and sends exactly what it
// is told, well-formed or not.
//
// Handshake frame: u64 length (little endian, counts what follows), u8 type, JSON and a newline.
// Data request: u64 size, u64 address, u8 opcode (0 read, 1 write, +0x80 with acknowledgement), 7
// bytes of padding; with acknowledgement the server answers u64 = magic<<32 | code.
package rawte

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
)

// Handshake message types.
const (
	Connection = 0
	Metadata   = 1
	Notify     = 2
	Probe      = 3
)

// Opcodes of a data request; Ack is added for acknowledged framing.
const (
	Read  = 0
	Write = 1
	Ack   = 0x80
)

// Magic is the upper half of every status frame.
const Magic = 0x4D435456

// Status codes.
const (
	OK       = 0
	Rejected = 1
)

// Frame is a handshake frame of any type with any body.
func Frame(typ byte, body string) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(body)+1))
	return append(append(b, typ), body...)
}

// Send writes bytes to a new connection and returns it. Every later read or write on it fails after
// within.
func Send(addr string, within time.Duration, b []byte) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", addr, within)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(within))
	if _, err := c.Write(b); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// ReadFrame reads one handshake frame.
func ReadFrame(r io.Reader) (typ byte, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n == 0 || n > 64<<20 {
		return 0, nil, fmt.Errorf("frame of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, err
	}
	return b[0], b[1:], nil
}

// Call sends one handshake request on a connection of its own and returns the reply's JSON.
func Call(addr string, within time.Duration, typ byte, body string) (string, error) {
	c, err := Send(addr, within, Frame(typ, body))
	if err != nil {
		return "", err
	}
	defer c.Close()
	got, reply, err := ReadFrame(c)
	if err != nil {
		return "", err
	}
	if got != typ {
		return "", fmt.Errorf("reply of type %d to type %d", got, typ)
	}
	return string(reply), nil
}

// Desc is what a data client needs of a segment document.
type Desc struct {
	Name            string `json:"name"`
	Protocol        string `json:"protocol"`
	TCPDataHost     string `json:"tcp_data_host"`
	TCPDataPort     int    `json:"tcp_data_port"`
	TCPProtoVersion int    `json:"tcp_proto_version"`
	Buffers         []struct {
		Name   string `json:"name"`
		Addr   uint64 `json:"addr"`
		Length uint64 `json:"length"`
	} `json:"buffers"`
}

// DataAddr is where the segment's data port is.
func (d *Desc) DataAddr() string { return net.JoinHostPort(d.TCPDataHost, fmt.Sprint(d.TCPDataPort)) }

// Open asks the handshake daemon at addr for its segment document.
func Open(addr string, within time.Duration) (*Desc, error) {
	reply, err := Call(addr, within, Metadata, "{}\n")
	if err != nil {
		return nil, err
	}
	d := new(Desc)
	if err := json.Unmarshal([]byte(reply), d); err != nil {
		return nil, fmt.Errorf("%w in %q", err, reply)
	}
	return d, nil
}

// Header is a data request's header.
func Header(op byte, addr, size uint64) []byte {
	b := make([]byte, 24)
	binary.LittleEndian.PutUint64(b, size)
	binary.LittleEndian.PutUint64(b[8:], addr)
	b[16] = op
	return b
}

// StatusError is a well-formed status frame other than OK.
type StatusError struct{ Code uint32 }

func (e *StatusError) Error() string { return fmt.Sprintf("status %d", e.Code) }

// ReadStatus reads a status frame: nil for OK, a *StatusError for another code.
func ReadStatus(r io.Reader) error {
	var b [8]byte
	if n, err := io.ReadFull(r, b[:]); err != nil {
		return fmt.Errorf("status: %d bytes: %w", n, err)
	}
	v := binary.LittleEndian.Uint64(b[:])
	if v>>32 != Magic {
		return fmt.Errorf("status frame %016x without the magic", v)
	}
	if uint32(v) != OK {
		return &StatusError{uint32(v)}
	}
	return nil
}

// Data is a connection to a data port, used for one acknowledged request after the other.
type Data struct{ net.Conn }

// DialData connects to a data port. Every request fails that is not answered before the deadline.
func DialData(addr string, within time.Duration) (*Data, error) {
	c, err := net.DialTimeout("tcp", addr, within)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(within))
	return &Data{c}, nil
}

// WriteAt stores b at a remote address.
func (d *Data) WriteAt(b []byte, addr uint64) error {
	if _, err := d.Write(Header(Write|Ack, addr, uint64(len(b)))); err != nil {
		return err
	}
	if _, err := d.Write(b); err != nil {
		return err
	}
	return ReadStatus(d)
}

// ReadAt fetches len(b) bytes from a remote address.
func (d *Data) ReadAt(b []byte, addr uint64) error {
	if _, err := d.Write(Header(Read|Ack, addr, uint64(len(b)))); err != nil {
		return err
	}
	if err := ReadStatus(d); err != nil {
		return err
	}
	_, err := io.ReadFull(d, b)
	return err
}
