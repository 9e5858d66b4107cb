// Package stack finds the stack of one goroutine by its number.
package stack

import (
	"bytes"
	"runtime"
)

// maxStack bounds the stacks of all goroutines that are searched for that of a handler, in bytes.
const maxStack = 16 << 20

// Goroutine returns the number of the goroutine that calls it, as stacks have it: "goroutine 12 ".
func Goroutine() string {
	var buf [64]byte
	line := buf[:runtime.Stack(buf[:], false)]
	if i := bytes.IndexByte(line, '['); i > 0 {
		return string(line[:i])
	}
	return ""
}

// Of returns the stack of a goroutine, by its number from Goroutine.
func Of(number string) string {
	if number == "" {
		return ""
	}
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) || len(buf) >= maxStack {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 4*len(buf))
	}
	for stack := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.HasPrefix(stack, []byte(number)) {
			return string(stack)
		}
	}
	return ""
}
