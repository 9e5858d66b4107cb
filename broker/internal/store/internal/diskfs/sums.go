package diskfs

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
)

// Castagnoli is the polynomial of all checksums.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SumFormat is the form of a file's size and checksum.
const SumFormat = "%d %08x"

// SumLine returns a file's size and checksum in SumFormat.
func SumLine(size int64, sum uint32) string { return fmt.Sprintf(SumFormat, size, sum) }

// FormatSums returns a text of lines by file, with a checksum of its own at the end.
func FormatSums(lines map[string]string) []byte {
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&text, "%s %s\n", name, lines[name])
	}
	fmt.Fprintf(&text, "%08x\n", crc32.Checksum(text.Bytes(), Castagnoli))
	return text.Bytes()
}

// ParseSums parses the result of FormatSums. ok is false if the text is damaged.
func ParseSums(text []byte) (files map[string]string, ok bool) {
	end := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n') + 1
	if string(text[end:]) != fmt.Sprintf("%08x\n", crc32.Checksum(text[:end], Castagnoli)) {
		return nil, false
	}
	files = map[string]string{}
	for line := range strings.Lines(string(text[:end])) {
		name, rest, found := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !found {
			return nil, false
		}
		files[name] = rest
	}
	return files, true
}
