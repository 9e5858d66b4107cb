package web

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/internal/protocol"
)

const (
	// MaxAdminBody bounds a request of the administration, in bytes.
	MaxAdminBody = 64 << 10

	// The content types of bodies.
	TypeJSON   = "application/json"
	TypeNDJSON = "application/x-ndjson"
	TypeBytes  = "application/octet-stream"
	TypeText   = "text/plain"
)

// ReadJSON decodes the request's body into v: one JSON object with known keys, of at most
// MaxAdminBody bytes. No body means an empty object.
func ReadJSON[T any](w http.ResponseWriter, r *http.Request, v *T) error {
	_, err := ReadObject(w, r, MaxAdminBody, v)
	return err
}

// ReadObject is ReadJSON for an object of at most limit bytes, and also returns its text.
func ReadObject[T any](w http.ResponseWriter, r *http.Request, limit int64, v *T) (text []byte, err error) {
	raw, err := ReadBody(w, r, limit)
	if err != nil || len(bytes.TrimSpace(raw)) == 0 {
		return nil, err
	}
	if err := declaredJSON(r); err != nil {
		return nil, err
	}
	return raw, Decode(raw, v)
}

// ReadBody reads the request's body. It rejects a body of more than limit bytes, or one for which
// the request's hold (see transit.Of) gets no memory. The hold stays until the request is over.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	raw, err := readHeld(http.MaxBytesReader(w, r.Body, limit), transit.Of(r.Context()), min(r.ContentLength, limit))
	if refusal.CodeOf(err) == tidegate.CodeTooManyRequests {
		return nil, err
	}
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	onNetwork, isOnNetwork := errors.AsType[*net.OpError](err)
	switch {
	case err == nil:
		return raw, nil
	case isTooLarge:
		return nil, refusal.New(protocol.CodePayloadTooLarge, "body", fmt.Sprintf("the body exceeds the limit of %d bytes", tooLarge.Limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refusal.New(tidegate.CodeRequestTimeout, "body", "the body did not arrive"+readTime(r))
	case isOnNetwork:
		err = onNetwork.Err // without the addresses
	}
	return nil, refusal.New(tidegate.CodeBadRequest, "body", "the body could not be read: "+err.Error())
}

const (
	// BodyFactor is how many times its size a body takes while it is read and decoded: once as it
	// came, and up to twice in the decoder.
	BodyFactor = 3

	// FirstRead is how many bytes of a body are read first.
	FirstRead = 64 << 10
)

// readHeld reads r, which has length bytes, or -1 if the length is unknown. It reads in pieces,
// each as large as all before it, and reserves memory for each piece before it reads it.
func readHeld(r io.Reader, h *transit.Hold, length int64) ([]byte, error) {
	room := int64(FirstRead)
	if length >= 0 {
		room = min(room, length+1) // one more for io.EOF
	}
	var raw []byte
	for {
		if err := h.Resize(BodyFactor*room, true); err != nil {
			return nil, err
		}
		raw = append(make([]byte, 0, room), raw...)
		for len(raw) < cap(raw) {
			n, err := r.Read(raw[len(raw):cap(raw)])
			raw = raw[:len(raw)+n]
			if errors.Is(err, io.EOF) {
				return raw, h.Resize(BodyFactor*room, false)
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

// ReadNothing rejects a request that has a body.
func ReadNothing(w http.ResponseWriter, r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	switch _, err := ReadBody(w, r, 0); refusal.CodeOf(err) {
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
	if encoding(r) == "" && (preflight && (given == "" || name == "application/x-www-form-urlencoded") || err == nil && strings.HasSuffix(name, "+json")) {
		return nil
	}
	_, err = ContentType(r, TypeJSON)
	return err
}

// encoding returns the Content-Encoding of the body; empty for none.
func encoding(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Content-Encoding"), "identity")
}

// ContentType returns the one of the types that the request declares for its body. It rejects with
// 415 a body without a type, or of a type that a page in a browser can send to any server, unless
// the type is among those.
func ContentType(r *http.Request, types ...string) (string, error) {
	bad := func(format string, args ...any) error {
		return &withStatus{refusal.New(tidegate.CodeBadRequest, "Content-Type", fmt.Sprintf(format, args...)), http.StatusUnsupportedMediaType}
	}
	if e := encoding(r); e != "" {
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
	return refusal.New(tidegate.CodeBadRequest, "body", "the body: "+fmt.Sprintf(format, args...))
}

// Decode decodes one JSON object into v, and reports the position of a fault. It rejects repeated
// keys, unknown keys, and text that is not UTF-8.
func Decode(raw []byte, v any) error {
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
