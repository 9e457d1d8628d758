package wire

import (
	"crypto/md5"
	"encoding/binary"
	"fmt"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// masterService is the class whose member functions are the RPCs.
const masterService = "mooncake::WrappedMasterService::"

// FunctionID returns the id of a function by its fully qualified C++ name: the first four bytes of
// the MD5 of the name, big-endian. Argument types are not part of it.
func FunctionID(name string) uint32 {
	sum := md5.Sum([]byte(name))
	return binary.BigEndian.Uint32(sum[:4])
}

// Method is one function of the master with its layouts in every version. Immutable; safe for
// concurrent use.
type Method[Req, Resp any] struct {
	name    string
	id      uint32
	layouts [NumVersions]*layout[Req, Resp] // nil: the version does not have the function
	inputs  []input[Req]                    // the distinct request layouts, newest first
}

// layout is the form of a function from one version on.
type layout[Req, Resp any] struct {
	from Version
	in   arguments[Req]
	out  *structpack.Message[Resp]
}

// input is one request layout and the versions that use it.
type input[Req any] struct {
	arguments[Req]
	set       VersionSet
	ambiguous bool // the answers of these versions differ
}

// arguments is a request layout; msg is nil for no arguments.
type arguments[Req any] struct {
	msg    *structpack.Message[Req]
	single bool                            // one argument, which may also come as a tuple
	fill   func(*structpack.Decoder, *Req) // for no arguments: sets the request
}

func (a arguments[Req]) literal() string {
	if a.msg == nil {
		return ""
	}
	return a.msg.Literal()
}

// at is the layout of a function from version v until the next one given.
func at[Req, Resp any](v Version, in arguments[Req], out structpack.Type[Resp]) layout[Req, Resp] {
	return layout[Req, Resp]{from: v, in: in, out: structpack.NewMessage(out)}
}

// define makes a method from its layouts, oldest first, and lists it in [Methods].
func define[Req, Resp any](name string, layouts ...layout[Req, Resp]) *Method[Req, Resp] {
	m := &Method[Req, Resp]{name: name, id: FunctionID(masterService + name)}
	for i := range layouts {
		if i > 0 && layouts[i].from <= layouts[i-1].from {
			panic(fmt.Sprintf("wire: layouts of %s are out of order", name))
		}
		for v := layouts[i].from; v < endOfVersions; v++ {
			m.layouts[v] = &layouts[i]
		}
	}
	for v := int(Newest); v >= 0; v-- {
		if l := m.layouts[v]; l != nil {
			m.addInput(l, Version(v))
		}
	}
	registerMethod(m)
	return m
}

func (m *Method[Req, Resp]) addInput(l *layout[Req, Resp], v Version) {
	for i := range m.inputs {
		in := &m.inputs[i]
		if in.literal() != l.in.literal() {
			continue
		}
		newest, _ := in.set.Newest()
		in.ambiguous = in.ambiguous || m.layouts[newest].out.Literal() != l.out.Literal()
		in.set |= 1 << v
		return
	}
	m.inputs = append(m.inputs, input[Req]{arguments: l.in, set: 1 << v})
}

// Name returns the C++ method name.
func (m *Method[Req, Resp]) Name() string { return m.name }

// ID returns the function id.
func (m *Method[Req, Resp]) ID() uint32 { return m.id }

// Versions returns the versions that have the function.
func (m *Method[Req, Resp]) Versions() VersionSet {
	var s VersionSet
	for v, l := range m.layouts {
		if l != nil {
			s |= 1 << v
		}
	}
	return s
}

// Candidates returns the versions that send this type code to this function; empty if none does.
// ambiguous tells that their answers differ, so that the caller's version must be known from
// elsewhere. The code of an empty body is 0; functions without arguments accept any.
func (m *Method[Req, Resp]) Candidates(code uint32) (set VersionSet, ambiguous bool) {
	for i := range m.inputs {
		in := &m.inputs[i]
		if in.msg == nil && (code == 0 || len(m.inputs) == 1) ||
			in.msg != nil && (in.msg.Code() == code || in.single && in.msg.TupleCode() == code) {
			return in.set, in.ambiguous
		}
	}
	return 0, false
}

// Layout returns how version v spells the function; ok is false if it does not have it.
func (m *Method[Req, Resp]) Layout(v Version) (l Layout, ok bool) {
	if v >= endOfVersions || m.layouts[v] == nil {
		return Layout{}, false
	}
	x := m.layouts[v]
	l = Layout{RequestLiteral: x.in.literal(), ResponseLiteral: x.out.Literal(), ResponseCode: x.out.Code()}
	if x.in.msg != nil {
		l.RequestCode = x.in.msg.Code()
	}
	return l, true
}

// AppendRequest appends the arguments for version v to dst.
func (m *Method[Req, Resp]) AppendRequest(dst []byte, v Version, req *Req, literal bool) ([]byte, error) {
	l, err := m.layout(v)
	if err != nil || l.in.msg == nil {
		return dst, err
	}
	return l.in.msg.Append(dst, req, literal)
}

// DecodeRequest reads arguments by their type code. Bodies of functions without arguments are
// ignored, as upstream does. With alias, strings share the memory of body.
func (m *Method[Req, Resp]) DecodeRequest(body []byte, req *Req, alias bool) (set VersionSet, ambiguous bool, err error) {
	if in := &m.inputs[0]; in.msg == nil && len(m.inputs) == 1 {
		return in.set, in.ambiguous, nil
	}
	var h structpack.Header
	if len(body) > 0 {
		if h, err = structpack.ParseHeader(body); err != nil {
			return 0, false, err
		}
	}
	for i := range m.inputs {
		in := &m.inputs[i]
		switch {
		case in.msg == nil: // an older version without arguments (RemoveAll of 0.3.8)
			if len(body) > 0 {
				continue
			}
			in.fill(nil, req)
		case len(body) > 0 && in.msg.Code() == h.Code:
			err = in.msg.DecodeHeader(h, req, alias)
		case len(body) > 0 && in.single && in.msg.TupleCode() == h.Code:
			err = in.msg.DecodeTuple(h, req, alias)
		default:
			continue
		}
		return in.set, in.ambiguous, err
	}
	return 0, false, fmt.Errorf("%w: no version of %s takes %s", structpack.ErrMalformed, m.name, describe(h))
}

func describe(h structpack.Header) string {
	if h.HasLiteral {
		return structpack.Describe(string(h.Literal))
	}
	return fmt.Sprintf("type code %08x", h.Code)
}

// AppendResponse appends the answer for version v to dst.
func (m *Method[Req, Resp]) AppendResponse(dst []byte, v Version, resp *Resp, literal bool) ([]byte, error) {
	l, err := m.layout(v)
	if err != nil {
		return dst, err
	}
	return l.out.Append(dst, resp, literal)
}

// DecodeResponse reads the answer of a server of version v.
func (m *Method[Req, Resp]) DecodeResponse(body []byte, v Version, resp *Resp, alias bool) error {
	l, err := m.layout(v)
	if err != nil {
		return err
	}
	return l.out.Decode(body, resp, alias)
}

func (m *Method[Req, Resp]) layout(v Version) (*layout[Req, Resp], error) {
	if v >= endOfVersions || m.layouts[v] == nil {
		return nil, fmt.Errorf("wire: version %s has no function %s", v, m.name)
	}
	return m.layouts[v], nil
}

// Layout is the form of a function in one version. Codes of functions without arguments are 0 and
// their literal is empty.
type Layout struct {
	RequestCode, ResponseCode       uint32
	RequestLiteral, ResponseLiteral string
}

// AnyMethod is a [Method] of any types.
type AnyMethod interface {
	Name() string
	ID() uint32
	Versions() VersionSet
	Candidates(code uint32) (set VersionSet, ambiguous bool)
	Layout(v Version) (Layout, bool)
}

var (
	methods     []AnyMethod
	methodsByID = map[uint32]AnyMethod{}
)

func registerMethod(m AnyMethod) {
	if other, ok := methodsByID[m.ID()]; ok {
		panic(fmt.Sprintf("wire: %s and %s share an id", m.Name(), other.Name()))
	}
	methods = append(methods, m)
	methodsByID[m.ID()] = m
}

// Methods lists all functions in the order of their declaration. The caller must not change it.
func Methods() []AnyMethod { return methods }

// MethodByID finds a function by its id.
func MethodByID(id uint32) (AnyMethod, bool) {
	m, ok := methodsByID[id]
	return m, ok
}
