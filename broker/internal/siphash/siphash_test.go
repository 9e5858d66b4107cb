package siphash

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// reference is the algorithm as its paper has it, byte by byte, with c and d rounds.
func reference(k Key, s string, c, d int) uint64 {
	v := [4]uint64{k.K0 ^ 0x736f6d6570736575, k.K1 ^ 0x646f72616e646f6d, k.K0 ^ 0x6c7967656e657261, k.K1 ^ 0x7465646279746573}
	rounds := func(n int) {
		for range n {
			v[0] += v[1]
			v[2] += v[3]
			v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
			v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
			v[0] = bits.RotateLeft64(v[0], 32)
			v[2] += v[1]
			v[0] += v[3]
			v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
			v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
			v[2] = bits.RotateLeft64(v[2], 32)
		}
	}
	b := append([]byte(s), make([]byte, 7-len(s)%8)...)
	b = append(b, byte(len(s)))
	for ; len(b) > 0; b = b[8:] {
		m := uint64(0)
		for i := range 8 {
			m |= uint64(b[i]) << (8 * i)
		}
		v[3] ^= m
		rounds(c)
		v[0] ^= m
	}
	v[2] ^= 0xff
	rounds(d)
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

func counting(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

func TestSum(t *testing.T) {
	key := Key{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	for n, want := range map[int]uint64{ // of the paper, and its authors' reference
		0: 0x726fdb47dd0e0e31, 1: 0x74f839c593dc67fd, 7: 0xab0200f58b01d137, 8: 0x93f5f5799a932462, 15: 0xa129ca6149be45e5, 63: 0x958a324ceb064572,
	} {
		if got := reference(key, counting(n), 2, 4); got != want {
			t.Errorf("SipHash-2-4 of %d bytes is %x, want %x", n, got, want)
		}
	}
	for n := range 100 {
		k := Key{rand.Uint64(), rand.Uint64()}
		if got, want := k.Sum(counting(n)), reference(k, counting(n), 1, 3); got != want {
			t.Errorf("%d bytes: %x, want %x", n, got, want)
		}
	}
	// Hashes of Python 3.11 and later, which has SipHash-1-3 and a key of zero if PYTHONHASHSEED is 0.
	for n, want := range map[int]uint64{1: 0x68a914128e01e473, 7: 0x2f098ab0c751325a, 8: 0xead411e67ebe2eea, 9: 0x75927f9d95124362, 34: 0x92771f49e836d389, 64: 0x75e05fd5bbc870c6} {
		if got := (Key{}).Sum(counting(n)); got != want {
			t.Errorf("%d bytes: %x, want %x", n, got, want)
		}
	}
}

func BenchmarkSum(b *testing.B) {
	k, s, sum := Key{1, 2}, counting(32), uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		sum += k.Sum(s)
	}
	_ = sum
}
