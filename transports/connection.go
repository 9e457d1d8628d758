package transports

import (
	"fmt"
	"math"
	"strconv"

	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
)

// Connection is a handshake message of type 0: one side of an RDMA connection being set up. It is upstream's
// HandShakeDesc, plus our key "path_mtu", which C++ readers ignore.
type Connection struct {
	Payload      string
	LocalNICPath string // "<server name>@<nic>" of the sender
	LocalLID     uint32
	LocalGID     string
	PeerNICPath  string // of the receiver
	QPNum        []uint32
	// ReadyAck is written only when HasReadyAck is set; its presence announces the ready-ack step.
	ReadyAck, HasReadyAck bool
	// ReplyMsg, when not empty in a reply, is the reason of a rejection.
	ReplyMsg string
	// PathMTU is the largest path MTU of the sender in bytes; 0 = not told (engines of other makes).
	PathMTU uint32
	// NotifyDepth is notify_rq_depth, which the wheel checks against its bound.
	NotifyDepth uint64
}

// Encode returns the body of the frame, keys in byte order.
func (c *Connection) Encode() []byte {
	b := jsoncpp.AppendString([]byte(`{"local_gid":`), c.LocalGID)
	b = strconv.AppendUint(append(b, `,"local_lid":`...), uint64(c.LocalLID), 10)
	b = jsoncpp.AppendString(append(b, `,"local_nic_path":`...), c.LocalNICPath)
	if c.PathMTU != 0 {
		b = strconv.AppendUint(append(b, `,"path_mtu":`...), uint64(c.PathMTU), 10)
	}
	b = jsoncpp.AppendString(append(b, `,"payload":`...), c.Payload)
	b = jsoncpp.AppendString(append(b, `,"peer_nic_path":`...), c.PeerNICPath)
	b = append(b, `,"qp_num":[`...)
	for i, q := range c.QPNum {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(q), 10)
	}
	b = append(b, ']')
	if c.HasReadyAck {
		b = strconv.AppendBool(append(b, `,"ready_ack":`...), c.ReadyAck)
	}
	return append(jsoncpp.AppendString(append(b, `,"reply_msg":`...), c.ReplyMsg), '}')
}

// ParseConnection reads the body of a Connection frame with the wheel's tolerance: null and absent
// fields are empty, numbers count as text, a local_lid that is no number is 0, qp_num may be an
// object. What aborts upstream's daemon is an error.
func ParseConnection(body []byte) (*Connection, error) {
	c := &Connection{}
	r := jsoncpp.NewReader(body)
	k, err := r.Kind()
	if err != nil {
		return nil, err
	}
	if k == jsoncpp.Null {
		return c, r.Skip()
	}
	err = r.Object(func(key []byte) error {
		name := string(key)
		if err := c.member(r, name); err != nil {
			return fmt.Errorf("%.40s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Connection) member(r *jsoncpp.Reader, key string) (err error) {
	switch key {
	case "payload":
		c.Payload, err = r.AsString()
	case "local_nic_path":
		c.LocalNICPath, err = r.AsString()
	case "peer_nic_path":
		c.PeerNICPath, err = r.AsString()
	case "reply_msg":
		c.ReplyMsg, err = r.AsString()
	case "local_gid":
		c.LocalGID, err = lenient(r, jsoncpp.String, r.AsString)
	case "local_lid":
		c.LocalLID, err = lenient(r, jsoncpp.Number, func() (uint32, error) { return anyUint(r) })
	case "path_mtu":
		c.PathMTU, err = lenient(r, jsoncpp.Number, func() (uint32, error) { return anyUint(r) })
	case "notify_rq_depth":
		c.NotifyDepth, err = lenient(r, jsoncpp.Number, func() (uint64, error) { return r.AsUint(math.MaxUint64) })
	case "qp_num":
		c.QPNum, err = qpNumbers(r)
	case "ready_ack":
		c.HasReadyAck = true
		var t []byte
		if t, err = r.Raw(); err == nil {
			c.ReadyAck = string(t) == "true"
		}
	default:
		err = r.Skip()
	}
	return err
}

// lenient reads a value with f if it is of kind k; any other value counts as absent.
func lenient[T any](r *jsoncpp.Reader, k jsoncpp.Kind, f func() (T, error)) (T, error) {
	var zero T
	got, err := r.Kind()
	if err != nil {
		return zero, err
	}
	if got != k {
		return zero, r.Skip()
	}
	return f()
}

// anyUint reads a number that upstream replaces by 0 when it does not fit.
func anyUint(r *jsoncpp.Reader) (uint32, error) {
	t, err := r.AsText()
	if err != nil {
		return 0, err
	}
	v, err := jsoncpp.NewReader(t).AsUint(math.MaxUint32)
	if err != nil {
		v = 0
	}
	return uint32(v), nil
}

// maxQPs bounds what a message can make us keep; real ones have 1 to 8.
const maxQPs = 4096

func qpNumbers(r *jsoncpp.Reader) (out []uint32, err error) {
	one := func() error {
		v, err := r.AsUint(math.MaxUint32)
		if err == nil && len(out) == maxQPs {
			err = fmt.Errorf("more than %d queue pairs", maxQPs)
		}
		out = append(out, uint32(v))
		return err
	}
	k, err := r.Kind()
	if err != nil {
		return nil, err
	}
	switch k {
	case jsoncpp.Array:
		err = r.Array(one)
	case jsoncpp.Object:
		err = r.Object(func([]byte) error { return one() })
	default:
		err = r.Skip()
	}
	return out, err
}
