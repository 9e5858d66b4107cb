package web

import (
	"bytes"

	"github.com/tidegate/tidegate"
)

const (
	// maxMembers bounds each list and each object in JSON. More keys of one byte no message can
	// have.
	maxMembers = tidegate.MaxPropertiesSize

	// maxNesting is from where on encoding/json reads no further.
	maxNesting = 10_000
)

// crowded returns where a list or an object begins that has more members than most, or -1. Decoded,
// an empty message of three bytes has a hundred and seventy, so that this is looked for before.
func crowded(raw []byte, most int) int {
	type opened struct{ at, commas int }
	var in []opened // without a recorded end
	for at := 0; at < len(raw); at++ {
		switch raw[at] {
		case '"':
			at = endOfString(raw, at)
		case '[', '{':
			if in = append(in, opened{at: at}); len(in) > maxNesting {
				return -1
			}
		case ']', '}':
			if len(in) == 0 {
				return -1
			}
			in = in[:len(in)-1]
		case ',':
			if len(in) == 0 {
				return -1
			}
			top := &in[len(in)-1]
			if top.commas++; top.commas >= most {
				return top.at
			}
		}
	}
	return -1
}

// endOfString returns where the string ends that begins at at.
func endOfString(raw []byte, at int) int {
	for at++; ; at += 2 {
		n := bytes.IndexAny(raw[min(at, len(raw)):], "\"\\")
		if n < 0 {
			return len(raw)
		}
		if at += n; raw[at] == '"' {
			return at
		}
	}
}
