package handshake

import (
	"fmt"

	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
	"github.com/mooncake-agent/mooncake/transports"
)

// Message is a notification: a label and a text, both of any content. Delivery is at most once.
type Message struct {
	Name string // the sender's label
	Text string // upstream's notify_msg
}

// Encode returns the body of a Notify frame.
func (m Message) Encode() []byte {
	b := jsoncpp.AppendString([]byte(`{"name":`), m.Name)
	b = jsoncpp.AppendString(append(b, `,"notify_msg":`...), m.Text)
	return append(b, '}')
}

// ParseMessage reads the body of a Notify frame or of its reply. Absent fields are "", numbers count as
// their text; what aborts upstream's daemon (no object, a list as text) is an error.
func ParseMessage(body []byte) (m Message, err error) {
	err = readObject(body, func(r *jsoncpp.Reader, key string) (err error) {
		switch key {
		case "name":
			m.Name, err = r.AsString()
		case "notify_msg":
			m.Text, err = r.AsString()
		default:
			err = r.Skip()
		}
		return err
	})
	return m, err
}

// accepted is the daemon's reply to a notification. An empty text would mean that it was refused.
func accepted() []byte { return Message{Text: "success"}.Encode() }

var alive = []byte(`{"status":"success"}`)

// maxNotifyDepth is the largest notify_rq_depth that the wheel takes.
const maxNotifyDepth = 65535

// readObject reads the members of an object; null has none.
func readObject(body []byte, member func(r *jsoncpp.Reader, key string) error) error {
	r := jsoncpp.NewReader(body)
	k, err := r.Kind()
	if err != nil {
		return err
	}
	if k == jsoncpp.Null {
		return r.Skip()
	}
	return r.Object(func(key []byte) error {
		name := string(key)
		if err := member(r, name); err != nil {
			return fmt.Errorf("%.40s: %w", name, err)
		}
		return nil
	})
}

// refuseConnection answers a Connection message on a node without RDMA as upstream's tcp-only engine
// does: with an empty description. nil = close without reply.
func refuseConnection(body []byte) []byte {
	c, err := transports.ParseConnection(body)
	if err != nil {
		return nil
	}
	reply := transports.Connection{}
	if c.NotifyDepth > maxNotifyDepth {
		reply.ReplyMsg = "Invalid handshake notify_rq_depth"
	}
	return reply.Encode()
}
