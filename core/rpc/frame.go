package rpc

import (
	"encoding/binary"
	"fmt"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// Sizes of the frame headers.
const (
	RequestHeaderSize  = 20
	ResponseHeaderSize = 16
)

const (
	magic           = 0x15
	protocolVersion = 0
	serializePack   = 0 // struct_pack
)

// Code is a coro_rpc error code. Codes below 255 stand in the answer's header; larger ones are the
// application's and travel in the body.
type Code uint16

// The codes of coro_rpc.
const (
	CodeOK Code = iota
	CodeIO
	CodeNotConnected
	CodeTimedOut
	CodeInvalidArguments
	CodeAddressInUse
	CodeBadAddress
	CodeOpen
	CodeListen
	CodeCanceled
	CodeHandlerFailed // upstream: rpc_throw_exception
	CodeUnknownFunction
	CodeProtocol
	CodeUnknownVersion
	CodeTooLarge
	CodeServerHasRun
	CodeInvalidResult
	CodeSequenceConflict

	codeInBody Code = 255
)

// The texts that the C++ server sends.
const (
	textUnknownFunction  = "the rpc function not registered"
	textInvalidArguments = "invalid rpc arg"
)

var codeNames = [...]string{"ok", "io_error", "not_connected", "timed_out", "invalid_rpc_arguments", "address_in_used", "bad_address",
	"open_error", "listen_error", "operation_canceled", "rpc_throw_exception", "function_not_registered", "protocol_error",
	"unknown_protocol_version", "message_too_large", "server_has_ran", "invalid_rpc_result", "serial_number_conflict"}

// String returns upstream's name.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint16(c))
}

// requestHeader is the part of a request header that matters; the message type is ignored.
type requestHeader struct {
	seq, function uint32
	body, attach  uint32
}

// parseRequest reads a header of RequestHeaderSize bytes; false means that the peer does not speak
// this protocol.
func parseRequest(b []byte) (h requestHeader, ok bool) {
	_ = b[RequestHeaderSize-1]
	if b[0] != magic || b[1] > protocolVersion || b[2] != serializePack {
		return h, false
	}
	return requestHeader{
		seq:      binary.LittleEndian.Uint32(b[4:]),
		function: binary.LittleEndian.Uint32(b[8:]),
		body:     binary.LittleEndian.Uint32(b[12:]),
		attach:   binary.LittleEndian.Uint32(b[16:]),
	}, true
}

// size returns the bytes of the whole frame.
func (h requestHeader) size() uint64 {
	return RequestHeaderSize + uint64(h.body) + uint64(h.attach)
}

// AppendRequest appends a whole request frame to dst.
func AppendRequest(dst []byte, seq, function uint32, body []byte) []byte {
	dst = appendRequestHeader(dst, function)
	at := len(dst) - RequestHeaderSize
	return finishRequest(append(dst, body...), at, seq)
}

func appendRequestHeader(dst []byte, function uint32) []byte {
	dst = append(dst, magic, protocolVersion, serializePack, 0, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, function)
	return append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
}

// finishRequest fills sequence and length of the request that starts at frame[at:] and ends the slice.
func finishRequest(frame []byte, at int, seq uint32) []byte {
	binary.LittleEndian.PutUint32(frame[at+4:], seq)
	binary.LittleEndian.PutUint32(frame[at+12:], uint32(len(frame)-at-RequestHeaderSize))
	return frame
}

func appendResponseHeader(dst []byte, code byte, seq uint32) []byte {
	dst = append(dst, magic, protocolVersion, code, 0)
	dst = binary.LittleEndian.AppendUint32(dst, seq)
	return append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
}

func finishResponse(frame []byte, at int) {
	binary.LittleEndian.PutUint32(frame[at+8:], uint32(len(frame)-at-ResponseHeaderSize))
}

// responseHeader is a parsed answer header.
type responseHeader struct {
	code         byte
	seq          uint32
	body, attach uint32
}

func parseResponse(b []byte) (h responseHeader, ok bool) {
	_ = b[ResponseHeaderSize-1]
	if b[0] != magic || b[1] > protocolVersion {
		return h, false
	}
	return responseHeader{
		code:   b[2],
		seq:    binary.LittleEndian.Uint32(b[4:]),
		body:   binary.LittleEndian.Uint32(b[8:]),
		attach: binary.LittleEndian.Uint32(b[12:]),
	}, true
}

// Error bodies: a message, or for application codes a pair of code and message.

type codedMessage struct {
	code    uint16
	message string
}

var (
	errorText = structpack.NewMessage(structpack.String[string]())
	errorPair = structpack.NewMessage(structpack.Struct(
		structpack.F(structpack.Uint16[uint16](), func(m *codedMessage) *uint16 { return &m.code }),
		structpack.F(structpack.String[string](), func(m *codedMessage) *string { return &m.message })))
)

// appendError appends a whole error answer. It carries the type literal, as the C++ builds in use write it.
func appendError(dst []byte, seq uint32, code Code, message string) []byte {
	at := len(dst)
	var err error
	if code < codeInBody {
		dst = appendResponseHeader(dst, byte(code), seq)
		dst, err = errorText.Append(dst, &message, true)
	} else {
		dst = appendResponseHeader(dst, byte(codeInBody), seq)
		dst, err = errorPair.Append(dst, &codedMessage{uint16(code), message}, true)
	}
	if err != nil { // strings and integers always have a form
		panic(err)
	}
	finishResponse(dst, at)
	return dst
}

// decodeError reads the body of an error answer.
func decodeError(code byte, body []byte) (*RemoteError, error) {
	if Code(code) != codeInBody {
		e := &RemoteError{Code: Code(code)}
		return e, errorText.Decode(body, &e.Message, false)
	}
	var m codedMessage
	err := errorPair.Decode(body, &m, false)
	return &RemoteError{Code: Code(m.code), Message: m.message}, err
}
