package jsoncpp

import "unicode/utf8"

const hex = "0123456789abcdef"

// AppendString appends s as a quoted JSON string exactly as jsoncpp's writers do: control characters,
// the quote and the backslash are escaped, everything outside ASCII is written as \uXXXX (with
// surrogate pairs), and nothing else is escaped. Bytes that are not UTF-8 become \ufffd.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		size := 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			var r rune
			r, size = utf8.DecodeRuneInString(s[i:])
			if r > 0xffff {
				r -= 0x10000
				dst = appendUnit(dst, uint16(0xd800+(r>>10)))
				r = 0xdc00 + (r & 0x3ff)
			}
			dst = appendUnit(dst, uint16(r))
		}
		i += size
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

func appendUnit(dst []byte, u uint16) []byte {
	return append(dst, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
}
