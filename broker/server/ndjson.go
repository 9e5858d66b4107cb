package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"
)

// A lineReader reads lines of bounded length.
type lineReader struct {
	r      *bufio.Reader
	max    int // bytes of a line
	buf    []byte
	number int // of the line returned last, from 1
}

var errLineTooLong = errors.New("the line is too long")

func newLineReader(r io.Reader, limit int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), max: limit}
}

// next returns the next line without its end; it is valid until the next call.
// A line that is too long is passed over, with errLineTooLong. The last line
// needs no end, but one that was cut off is not returned: only io.EOF tells
// that the text is complete.
func (l *lineReader) next() ([]byte, error) {
	l.buf = l.buf[:0]
	seen, tooLong := false, false
	for {
		part, err := l.r.ReadSlice('\n')
		seen = seen || len(part) > 0
		if end := bytes.TrimRight(part, "\r\n"); tooLong || len(l.buf)+len(end) > l.max {
			tooLong = true
			l.buf = l.buf[:0]
		} else {
			l.buf = append(l.buf, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (!errors.Is(err, io.EOF) || !seen):
			return nil, err
		}
		l.number++
		if tooLong {
			return nil, errLineTooLong
		}
		return bytes.TrimRight(l.buf, "\r\n"), nil
	}
}

// ready reports whether next would return without reading.
func (l *lineReader) ready() bool {
	b, _ := l.r.Peek(l.r.Buffered()) // it has these
	return bytes.IndexByte(b, '\n') >= 0
}

// A lineWriter writes the lines of an answer, and each batch of them at once.
type lineWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
	e  *json.Encoder
}

func newLineWriter(w http.ResponseWriter) *lineWriter {
	return &lineWriter{w: w, rc: http.NewResponseController(w), e: json.NewEncoder(w)}
}

// begin makes the answer a stream.
func (l *lineWriter) begin() {
	h := l.w.Header()
	h.Set("Content-Type", typeNDJSON)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	l.w.WriteHeader(http.StatusOK)
}

// write writes values, a line each, and sends them.
func write[T any](l *lineWriter, values ...T) error {
	l.allow()
	for i := range values {
		if err := l.e.Encode(&values[i]); err != nil {
			return err
		}
	}
	return l.rc.Flush()
}

// alive sends an empty line: whoever is between here and the client learns
// that the stream goes on, and this side whether the client is still there.
func (l *lineWriter) alive() error {
	l.allow()
	if _, err := l.w.Write([]byte("\n")); err != nil {
		return err
	}
	return l.rc.Flush()
}

// allow gives the client time to take what is written next.
func (l *lineWriter) allow() {
	// Where there are no deadlines, such as in a test, there is none to move.
	_ = l.rc.SetWriteDeadline(time.Now().Add(answerTime))
}

// A lastLine ends a stream that could not go on.
type lastLine struct {
	Error problem `json:"error"`
}
