package client

import "encoding/binary"

// The checksum of objects is CRC-64/ECMA-182: polynomial 0x42F0E1EBA9EA3693, not reflected, initial value
// and final xor 0. hash/crc64 has the polynomial in its reflected form only.
const crcPoly = 0x42F0E1EBA9EA3693

// crcTables[k][b] is what byte b adds when k bytes follow it.
var crcTables = func() (t [8][256]uint64) {
	for b := range 256 {
		c := uint64(b) << 56
		for range 8 {
			if c>>63 == 1 {
				c = c<<1 ^ crcPoly
			} else {
				c <<= 1
			}
		}
		t[0][b] = c
	}
	for k := 1; k < 8; k++ {
		for b := range 256 {
			c := t[k-1][b]
			t[k][b] = c<<8 ^ t[0][c>>56]
		}
	}
	return t
}()

// Checksum continues crc, 0 at the start, over b. It is the checksum that wheels store and check with
// MOONCAKE_STORE_CHECKSUM=1.
func Checksum(crc uint64, b []byte) uint64 {
	t := &crcTables
	for len(b) >= 8 {
		x := crc ^ binary.BigEndian.Uint64(b)
		crc = t[7][x>>56] ^ t[6][x>>48&0xff] ^ t[5][x>>40&0xff] ^ t[4][x>>32&0xff] ^
			t[3][x>>24&0xff] ^ t[2][x>>16&0xff] ^ t[1][x>>8&0xff] ^ t[0][x&0xff]
		b = b[8:]
	}
	for _, v := range b {
		crc = crc<<8 ^ t[0][byte(crc>>56)^v]
	}
	return crc
}

// checksumOf is the checksum of a value in parts.
func checksumOf(parts [][]byte) uint64 {
	crc := uint64(0)
	for _, p := range parts {
		crc = Checksum(crc, p)
	}
	return crc
}
