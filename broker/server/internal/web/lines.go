package web

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tidegate/tidegate/broker/server/internal/transit"
)

// AnswerTime is the maximal time of writing a response, or a part of a stream, to a client that
// does not read.
const AnswerTime = time.Minute

// A LineReader reads lines of bounded length.
type LineReader struct {
	Max      int // bytes of a line
	Number   int // of the line returned last, from 1
	Retained int // bytes of lines that the caller retains; the hold includes them

	r    *bufio.Reader
	hold *transit.Hold
	buf  []byte
}

// ErrLineTooLong is returned by [LineReader.Next] in place of a line above the limit.
var ErrLineTooLong = errors.New("the line is too long")

// lineBuffer is how much of the lines is read ahead, in bytes.
const lineBuffer = 64 << 10

// NewLineReader returns a reader of lines of at most limit bytes, for which h holds memory. Its
// error is that of h.
func NewLineReader(r io.Reader, limit int, h *transit.Hold) (*LineReader, error) {
	l := &LineReader{Max: limit, hold: h}
	if err := l.Hold(true); err != nil {
		return nil, err
	}
	l.r = bufio.NewReaderSize(r, lineBuffer)
	return l, nil
}

// Hold adjusts the reserved memory to the buffered bytes. waits is set if the server waits for the
// client.
func (l *LineReader) Hold(waits bool) error {
	return l.hold.Resize(lineBuffer+BodyFactor*int64(l.Retained+cap(l.buf)), waits)
}

// grow makes room for n bytes more in the buffer.
func (l *LineReader) grow(n int) error {
	need := len(l.buf) + n
	if need <= cap(l.buf) {
		return nil
	}
	room := max(need, min(2*cap(l.buf), l.Max+len("\r\n")))
	if err := l.hold.Resize(lineBuffer+BodyFactor*int64(l.Retained+room), true); err != nil {
		return err
	}
	l.buf = append(make([]byte, 0, room), l.buf...)
	return nil
}

// Next returns the next line without its end. The line is valid until the next call. If there is no
// memory for it, the error is that of the reservation, and the reader cannot continue. A line that
// is too long is skipped with ErrLineTooLong. The last line needs no end, but an incomplete line is
// not returned: only io.EOF means that the text is complete.
func (l *LineReader) Next() ([]byte, error) {
	if l.buf = l.buf[:0]; cap(l.buf) > lineBuffer {
		l.buf = nil // most lines are shorter
	}
	seen, tooLong := false, false
	for {
		part, err := l.r.ReadSlice('\n')
		seen = seen || len(part) > 0
		if end := bytes.TrimRight(part, "\r\n"); tooLong || len(l.buf)+len(end) > l.Max {
			tooLong = true
			l.buf = l.buf[:0]
		} else {
			if err := l.grow(len(part)); err != nil {
				return nil, err
			}
			l.buf = append(l.buf, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (!errors.Is(err, io.EOF) || !seen):
			return nil, err
		}
		l.Number++
		if tooLong {
			return nil, ErrLineTooLong
		}
		return bytes.TrimRight(l.buf, "\r\n"), nil
	}
}

// Ready reports whether Next would return without reading.
func (l *LineReader) Ready() bool {
	b, _ := l.r.Peek(l.r.Buffered()) // it has these
	return bytes.IndexByte(b, '\n') >= 0
}

// A LineWriter writes the lines of a response, and each batch of them at once.
type LineWriter struct {
	Control *http.ResponseController // of the connection

	w     http.ResponseWriter
	e     *json.Encoder
	begun bool
}

// NewLineWriter returns a writer to w, which has written nothing yet.
func NewLineWriter(w http.ResponseWriter) *LineWriter {
	return &LineWriter{w: w, Control: http.NewResponseController(w), e: json.NewEncoder(w)}
}

// Begin makes the response a stream, unless a line did before.
func (l *LineWriter) Begin() {
	if l.begun {
		return
	}
	l.begun = true
	h := l.w.Header()
	h.Set("Content-Type", TypeNDJSON)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	l.w.WriteHeader(http.StatusOK)
}

// Begun reports whether the response is a stream already.
func (l *LineWriter) Begun() bool { return l.begun }

// Open is Begin that sends it, unless the stream has begun.
func (l *LineWriter) Open() error {
	if l.begun {
		return nil
	}
	l.prepare()
	return l.Control.Flush()
}

// Write writes values, a line each, and sends them.
func Write[T any](l *LineWriter, values ...T) error {
	l.prepare()
	for i := range values {
		if err := l.e.Encode(&values[i]); err != nil {
			return err
		}
	}
	return l.Control.Flush()
}

// Alive sends an empty line. It shows proxies and the client that the stream continues, and shows
// the server whether the client is connected.
func (l *LineWriter) Alive() error {
	l.prepare()
	if _, err := l.w.Write([]byte("\n")); err != nil {
		return err
	}
	return l.Control.Flush()
}

// prepare extends the deadline for the client to read the next write.
func (l *LineWriter) prepare() {
	// If there are no deadlines, for example in a test, there is none to move.
	_ = l.Control.SetWriteDeadline(time.Now().Add(AnswerTime))
	l.Begin()
}

// End writes the last line of a stream that ended because of err.
func (l *LineWriter) End(err error) error { return Write(l, lastLine{ProblemOf(err)}) }

type lastLine struct {
	Error *Problem `json:"error"`
}
