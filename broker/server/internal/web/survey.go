package web

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode"

	"github.com/tidegate/tidegate"
)

const (
	// maxMembers bounds each list and each object in JSON. More keys of one byte no message can
	// have.
	maxMembers = tidegate.MaxPropertiesSize

	// maxNesting is from where on encoding/json reads no further.
	maxNesting = 10_000

	// fewKeys is up to how many keys of an object are compared one by one.
	fewKeys = 16
)

// An opened is a list or an object of which survey has not seen the end.
type opened struct {
	at, commas int
	object     bool
	key        bool                // the next string is one
	keys       [][]byte            // of an object, without quotes
	many       map[string]struct{} // in place of keys, when there are more than fewKeys
}

// repeated notes a key, and reports whether the object has one that encoding/json
// takes for the same: the case of letters does not count.
func (o *opened) repeated(key []byte) bool {
	if i := bytes.IndexFunc(key, func(r rune) bool { return r == '\\' || r >= 0x80 }); i >= 0 {
		var text string
		if json.Unmarshal(slices.Concat([]byte{'"'}, key, []byte{'"'}), &text) != nil {
			return false // whoever decodes it says so
		}
		key = []byte(strings.Map(smallest, text))
	}
	if o.many == nil && len(o.keys) == fewKeys {
		o.many = make(map[string]struct{}, 2*fewKeys)
		for _, k := range o.keys {
			o.many[string(bytes.ToUpper(k))] = struct{}{}
		}
	}
	if o.many != nil {
		n := len(o.many)
		o.many[string(bytes.ToUpper(key))] = struct{}{}
		return len(o.many) == n
	}
	for _, k := range o.keys {
		if len(k) == len(key) && bytes.EqualFold(k, key) {
			return true
		}
	}
	o.keys = append(o.keys, key)
	return false
}

// smallest returns the same rune for all that differ in nothing but case.
func smallest(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}

// survey looks through a JSON text before it is decoded. It returns where a list or an object
// begins that has more members than most, or -1: decoded, an empty message of three bytes has a
// hundred and seventy, so what is too many has to be found before. And it returns whether an object
// may have a key twice: faultIn tells, since in a map keys differ in case.
func survey(raw []byte, most int) (crowded int, suspect bool) {
	var in []opened
	for at := 0; at < len(raw); at++ {
		switch c := raw[at]; c {
		case '"':
			end := endOfString(raw, at)
			if len(in) > 0 && in[len(in)-1].key && !suspect {
				top := &in[len(in)-1]
				top.key = false
				suspect = top.repeated(raw[at+1 : min(end, len(raw))])
			}
			at = end
		case '[', '{':
			if in = append(in, opened{at: at, object: c == '{', key: c == '{'}); len(in) > maxNesting {
				return -1, suspect
			}
		case ']', '}':
			if len(in) == 0 {
				return -1, suspect
			}
			in = in[:len(in)-1]
		case ',':
			if len(in) == 0 {
				return -1, suspect
			}
			top := &in[len(in)-1]
			top.key = top.object
			if top.commas++; top.commas >= most {
				return top.at, suspect
			}
		}
	}
	return -1, suspect
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
