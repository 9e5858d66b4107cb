package store

import (
	"fmt"
	"hash/crc32"
	"testing"
)

// Invariants: reading never panics, and any change of the written bytes is noticed.
func FuzzParseClean(f *testing.F) {
	whole := func(lines string) []byte {
		return fmt.Appendf([]byte(lines), "%08x\n", crc32.Checksum([]byte(lines), castagnoli))
	}
	f.Add(whole("messages/000001.log 5 0000abcd\n"), 3, byte(1))
	f.Add(whole(""), 0, byte(255))
	f.Add([]byte("\n"), 0, byte(0))
	f.Fuzz(func(t *testing.T, text []byte, at int, flip byte) {
		_, _ = parseSums(text)
		good := whole("groups/MANIFEST-000001 17 01234567\n")
		if files, ok := parseSums(good); !ok || len(files) != 1 {
			t.Fatalf("%q is not read: %v", good, files)
		}
		if flip != 0 {
			good[uint(at)%uint(len(good))] ^= flip
			if files, ok := parseSums(good); ok {
				t.Fatalf("%q is read as %v", good, files)
			}
		}
	})
}
