// Package siphash hashes strings with a secret key, so that nobody who does not know the
// key can choose strings whose hashes are equal, or near one another. It is SipHash-1-3, by
// Aumasson and Bernstein, with the rounds that hash tables use.
//
// The standard library's hash/maphash is faster, but its hashes are of one process; these may be stored.
package siphash

import "math/bits"

// A Key is the secret. All hashes that are compared need the same one.
type Key struct{ K0, K1 uint64 }

// Sum returns the hash of a string. It allocates nothing; several goroutines may call it.
func (k Key) Sum(s string) uint64 {
	v0, v1, v2, v3 := k.K0^0x736f6d6570736575, k.K1^0x646f72616e646f6d, k.K0^0x6c7967656e657261, k.K1^0x7465646279746573
	last := uint64(len(s)) << 56
	for len(s) >= 8 {
		m := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		s = s[8:]
		v3 ^= m
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
		v0 ^= m
	}
	for i := range len(s) {
		last |= uint64(s[i]) << (8 * i)
	}
	v3 ^= last
	v0, v1, v2, v3 = round(v0, v1, v2, v3)
	v0 ^= last
	v2 ^= 0xff
	v0, v1, v2, v3 = round(v0, v1, v2, v3)
	v0, v1, v2, v3 = round(v0, v1, v2, v3)
	v0, v1, v2, v3 = round(v0, v1, v2, v3)
	return v0 ^ v1 ^ v2 ^ v3
}

func round(v0, v1, v2, v3 uint64) (_, _, _, _ uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
