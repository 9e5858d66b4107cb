package session

import (
	"slices"
	"strconv"
	"strings"
)

// A version is the language and the version of a client.
type version struct {
	language, text string
	numbers        []int // of a text such as 5.1.4; nil if it has another form
}

// versions are the numbers of versions by their texts, so that each is parsed once.
type versions map[string][]int

func (k versions) of(p *Profile) version {
	if p == nil {
		return version{}
	}
	numbers, known := k[p.Version]
	if !known {
		numbers = numbersOf(p.Version)
		k[p.Version] = numbers
	}
	return version{language: p.Language, text: p.Version, numbers: numbers}
}

// newer reports whether v is the newer version of the same language. A text without numbers is
// neither newer nor older than another.
func (v *version) newer(than *version) bool {
	if v.numbers == nil || than.numbers == nil && than.text != "" {
		return false
	}
	return slices.Compare(v.numbers, than.numbers) > 0
}

// numbersOf returns the numbers of a version: those of 5.1.4 for v5.1.4-rc1 too.
func numbersOf(text string) []int {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "-")
	var out []int
	for part := range strings.SplitSeq(text, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// maxText bounds the texts of a client about itself, in bytes.
const maxText = 64

// cut returns the beginning of a client's text about itself, in memory of its own.
func cut(text string) string {
	return strings.Clone(strings.ToValidUTF8(text[:min(len(text), maxText)], ""))
}
