package server

import (
	"bufio"
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/protocol"
)

const (
	// maxAdminBody bounds a request of the administration, in bytes.
	maxAdminBody = 64 << 10

	// The content types of bodies.
	typeJSON   = "application/json"
	typeNDJSON = "application/x-ndjson"
	typeBytes  = "application/octet-stream"
	typeText   = "text/plain"
)

// readJSON decodes the request's body into v: one JSON object with known keys, of at most
// maxAdminBody bytes. No body means an empty object.
func readJSON[T any](w http.ResponseWriter, r *http.Request, v *T) error {
	_, err := readObject(w, r, maxAdminBody, v)
	return err
}

// readObject is readJSON for an object of at most limit bytes, and also returns its text.
func readObject[T any](w http.ResponseWriter, r *http.Request, limit int64, v *T) (text []byte, err error) {
	raw, err := readBody(w, r, limit)
	if err != nil || len(bytes.TrimSpace(raw)) == 0 {
		return nil, err
	}
	if err := declaredJSON(r); err != nil {
		return nil, err
	}
	return raw, decodeJSON(raw, v)
}

// readBody reads the request's body. It rejects a body of more than limit bytes, or one for which
// the request's hold (see admission.HoldOf) gets no memory. The hold stays until the request is
// over.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	raw, err := readHeld(http.MaxBytesReader(w, r.Body, limit), admission.HoldOf(r.Context()), min(r.ContentLength, limit))
	if refusal.CodeOf(err) == tidegate.CodeTooManyRequests {
		return nil, err
	}
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	onNetwork, isOnNetwork := errors.AsType[*net.OpError](err)
	switch {
	case err == nil:
		return raw, nil
	case isTooLarge:
		return nil, refusal.New(protocol.CodePayloadTooLarge, "body", "the body exceeds the limit of %d bytes", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refusal.New(protocol.CodeRequestTimeout, "body", "%s", "the body did not arrive"+readTime(r))
	case isOnNetwork:
		err = onNetwork.Err // without the addresses
	}
	return nil, refusal.New(tidegate.CodeBadRequest, "body", "%s", "the body could not be read: "+err.Error())
}

const (
	// bodyFactor is how many times its size a body takes while it is read and decoded: once as it
	// came, and up to twice in the decoder.
	bodyFactor = 3

	// firstRead is how many bytes of a body are read first.
	firstRead = 64 << 10
)

// readHeld reads r, which has length bytes, or -1 if the length is unknown. It reads in pieces,
// each as large as all before it, and reserves memory for each piece before it reads it.
func readHeld(r io.Reader, h *admission.Hold, length int64) ([]byte, error) {
	room := int64(firstRead)
	if length >= 0 {
		room = min(room, length+1) // one more for io.EOF
	}
	var raw []byte
	for {
		if err := h.Resize(bodyFactor*room, true); err != nil {
			return nil, err
		}
		raw = append(make([]byte, 0, room), raw...)
		for len(raw) < cap(raw) {
			n, err := r.Read(raw[len(raw):cap(raw)])
			raw = raw[:len(raw)+n]
			if errors.Is(err, io.EOF) {
				return raw, h.Resize(bodyFactor*room, false)
			}
			if err != nil {
				return nil, err
			}
		}
		more := room
		if length >= 0 && length+1 > room {
			more = min(more, length+1-room)
		}
		room += more
	}
}

// readTime returns the time in which a request must arrive, if it is bounded.
func readTime(r *http.Request) string {
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.ReadTimeout > 0 {
		return fmt.Sprintf(" within %v, the time limit of a request", s.ReadTimeout)
	}
	return " in time"
}

// readNothing rejects a request that has a body.
func readNothing(w http.ResponseWriter, r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	switch _, err := readBody(w, r, 0); refusal.CodeOf(err) {
	case protocol.CodePayloadTooLarge:
		return refusal.New(tidegate.CodeBadRequest, "body", "the request has a body, but this operation accepts none; leave it out")
	default:
		return err
	}
}

// declaredJSON rejects with 415 the body of a request that does not declare JSON. A page in a
// browser can send a POST without a type, or with the type of a form, to another server, but no PUT
// or PATCH. So these may have no type, or that of a form, which curl -d sets.
func declaredJSON(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	name, _, err := mime.ParseMediaType(given)
	preflight := r.Method != http.MethodPost // a browser requests permission for it
	if jsonEncoding(r) == "" && (preflight && (given == "" || name == "application/x-www-form-urlencoded") || err == nil && strings.HasSuffix(name, "+json")) {
		return nil
	}
	_, err = contentType(r, typeJSON)
	return err
}

// jsonEncoding returns the Content-Encoding of the body; empty for none.
func jsonEncoding(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Content-Encoding"), "identity")
}

// contentType returns the one of the types that the request declares for its body. It rejects with
// 415 a body without a type, or of a type that a page in a browser can send to any server, unless
// the type is among those.
func contentType(r *http.Request, types ...string) (string, error) {
	bad := func(format string, args ...any) error {
		return &withStatus{refusal.New(tidegate.CodeBadRequest, "Content-Type", format, args...), http.StatusUnsupportedMediaType}
	}
	if e := jsonEncoding(r); e != "" {
		return "", bad("the Content-Encoding is %.100q; send the body without encoding", e)
	}
	given := r.Header.Get("Content-Type")
	name, _, err := mime.ParseMediaType(given)
	if err == nil && slices.Contains(types, name) {
		return name, nil
	}
	want := "-H 'Content-Type: " + types[0] + "'"
	if given == "" {
		return "", bad("the Content-Type is missing; set it, with curl by %s", want)
	}
	return "", bad("the Content-Type is %.100q; give %s, with curl by %s", given, strings.Join(types, " or "), want)
}

func badBody(format string, args ...any) error {
	return refusal.New(tidegate.CodeBadRequest, "body", "%s", "the body: "+fmt.Sprintf(format, args...))
}

// decodeJSON decodes one JSON object into v, and reports the position of a fault. It rejects
// repeated keys, unknown keys, and text that is not UTF-8.
func decodeJSON(raw []byte, v any) error {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0:
		return badBody("it is empty; give a JSON object")
	case raw[0] != '{':
		return badBody("it is not a JSON object; begin it with {")
	}
	if at := crowded(raw, maxMembers); at >= 0 {
		return badBody("the list or object that begins at byte %d exceeds the limit of %d members", at, maxMembers)
	}
	if err := json.Unmarshal(raw, v, json.RejectUnknownMembers(true)); err != nil {
		return badBody("%s", diagnose(raw, err))
	}
	return nil
}

// answerTime is the maximal time of writing a response, or a part of a stream, to a client that
// does not read.
const answerTime = time.Minute

// A lineReader reads lines of bounded length.
type lineReader struct {
	Max      int // bytes of a line
	Number   int // of the line returned last, from 1
	Retained int // bytes of lines that the caller retains; the hold includes them

	r    *bufio.Reader
	hold *admission.Hold
	buf  []byte
}

// errLineTooLong is returned by [lineReader.Next] in place of a line above the limit.
var errLineTooLong = errors.New("the line is too long")

// lineBuffer is how much of the lines is read ahead, in bytes.
const lineBuffer = 64 << 10

// newLineReader returns a reader of lines of at most limit bytes, for which h holds memory. Its
// error is that of h.
func newLineReader(r io.Reader, limit int, h *admission.Hold) (*lineReader, error) {
	l := &lineReader{Max: limit, hold: h}
	if err := l.Hold(true); err != nil {
		return nil, err
	}
	l.r = bufio.NewReaderSize(r, lineBuffer)
	return l, nil
}

// Hold adjusts the reserved memory to the buffered bytes. waits is set if the server waits for the
// client.
func (l *lineReader) Hold(waits bool) error {
	return l.hold.Resize(lineBuffer+bodyFactor*int64(l.Retained+cap(l.buf)), waits)
}

// grow makes room for n bytes more in the buffer.
func (l *lineReader) grow(n int) error {
	need := len(l.buf) + n
	if need <= cap(l.buf) {
		return nil
	}
	room := max(need, min(2*cap(l.buf), l.Max+len("\r\n")))
	if err := l.hold.Resize(lineBuffer+bodyFactor*int64(l.Retained+room), true); err != nil {
		return err
	}
	l.buf = append(make([]byte, 0, room), l.buf...)
	return nil
}

// Next returns the next line without its end. The line is valid until the next call. If there is no
// memory for it, the error is that of the reservation, and the reader cannot continue. A line that
// is too long is skipped with ErrLineTooLong. The last line needs no end, but an incomplete line is
// not returned: only io.EOF means that the text is complete.
func (l *lineReader) Next() ([]byte, error) {
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
			return nil, errLineTooLong
		}
		return bytes.TrimRight(l.buf, "\r\n"), nil
	}
}

// Ready reports whether Next would return without reading.
func (l *lineReader) Ready() bool {
	b, _ := l.r.Peek(l.r.Buffered()) // it has these
	return bytes.IndexByte(b, '\n') >= 0
}

// A lineWriter writes the lines of a response, and each batch of them at once.
type lineWriter struct {
	Control *http.ResponseController // of the connection

	w     http.ResponseWriter
	e     *stdjson.Encoder
	begun bool
}

// newLineWriter returns a writer to w, which has written nothing yet.
func newLineWriter(w http.ResponseWriter) *lineWriter {
	return &lineWriter{w: w, Control: http.NewResponseController(w), e: stdjson.NewEncoder(w)}
}

// Begin makes the response a stream, unless a line did before.
func (l *lineWriter) Begin() {
	if l.begun {
		return
	}
	l.begun = true
	h := l.w.Header()
	h.Set("Content-Type", typeNDJSON)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	l.w.WriteHeader(http.StatusOK)
}

// Begun reports whether the response is a stream already.
func (l *lineWriter) Begun() bool { return l.begun }

// Open is Begin that sends it, unless the stream has begun.
func (l *lineWriter) Open() error {
	if l.begun {
		return nil
	}
	l.prepare()
	return l.Control.Flush()
}

// writeLines writes values, a line each, and sends them.
func writeLines[T any](l *lineWriter, values ...T) error {
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
func (l *lineWriter) Alive() error {
	l.prepare()
	if _, err := l.w.Write([]byte("\n")); err != nil {
		return err
	}
	return l.Control.Flush()
}

// prepare extends the deadline for the client to read the next write.
func (l *lineWriter) prepare() {
	// If there are no deadlines, for example in a test, there is none to move.
	_ = l.Control.SetWriteDeadline(time.Now().Add(answerTime))
	l.Begin()
}

// End writes the last line of a stream that ended because of err.
func (l *lineWriter) End(err error) error { return writeLines(l, lastLine{problemOf(err)}) }

type lastLine struct {
	Error *problem `json:"error"`
}

const (
	// maxMembers bounds each list and each object in JSON. More keys of one byte no message can
	// have.
	maxMembers = protocol.MaxPropertiesSize

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
