package store

import (
	"strings"
	"testing"
)

// Hashes that are stored must be found after an update too, so the hash function may not change.
func TestIDHashIsStable(t *testing.T) {
	k := IDKey{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	// The hash of 15 bytes is that of SipHash's paper; a record has its first six bytes.
	id := string([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
	if got, want := k.Hash(id), uint64(0xa129ca6149be0000); got != want {
		t.Errorf("it is %x, want %x", got, want)
	}
	long := strings.Repeat("0", 255)
	if n := testing.AllocsPerRun(100, func() { k.Hash(long) }); n != 0 {
		t.Errorf("hashing an ID allocates %v times", n)
	}
}
