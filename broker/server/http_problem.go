package server

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/nearest"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A problem is an error over HTTP (RFC 9457), with RocketMQ's code and the reply code of the
// remoting protocol. Both are 0 for errors without a code.
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Code      int    `json:"code,omitempty"`
	ReplyCode int    `json:"reply_code,omitempty"`

	// RetryAfter is the header Retry-After before it is rounded up to seconds.
	RetryAfter settings.Duration `json:"retry_after,omitempty"`

	// MaybeStored is set if a failed send may have taken effect.
	MaybeStored bool `json:"maybe_stored,omitempty"`

	// Results are those of a request about several things that all failed alike.
	Results any `json:"results,omitempty"`
}

// notReady is why requests cannot be served now.
type notReady struct{ Cause error }

func (e *notReady) Error() string { return "not ready: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *notReady) Unwrap() error { return e.Cause }

// withStatus is an error with an HTTP status that does not follow from its code.
type withStatus struct {
	error
	status int
}

// Unwrap returns the error itself.
func (e *withStatus) Unwrap() error { return e.error }

// problemOf converts an error. It returns nil for nil.
func problemOf(err error) *problem {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok || e.Code == 0 {
		e = &tidegate.Error{Code: tidegate.CodeInternalServerError, Err: err}
	}
	p := &problem{Status: httpStatus(e.Code), Title: e.Code.String(), Detail: refusal.Text(e), Code: int(e.Code), ReplyCode: e.ReplyCode()}
	if _, ok := errors.AsType[*notReady](err); ok || errors.Is(err, tidegate.ErrClosed) {
		p.Status = http.StatusServiceUnavailable
	}
	if own, ok := errors.AsType[*withStatus](err); ok {
		p.Status = own.status
	}
	p.Type, p.RetryAfter, p.MaybeStored = "about:blank", settings.Duration(max(e.RetryAfter, 0)), e.MaybeStored
	if p.Status == http.StatusTooManyRequests && p.RetryAfter == 0 {
		p.RetryAfter = settings.Duration(retryAfterUnknown)
	}
	if all, ok := errors.AsType[*allFailed](err); ok {
		p.Results = all.results
	}
	return p
}

// retryAfterUnknown is the delay of a throttled request if the broker has no estimate, for example
// without consumers. It is short enough to notice a consumer that starts, and long enough that
// waiting clients cost nothing. Over gRPC there is no push-back then, because its clients have a
// backoff of their own.
const retryAfterUnknown = 10 * time.Second

// httpStatus returns the HTTP status of a code: its first three digits, where
// HTTP means the same by them.
func httpStatus(c tidegate.Code) int {
	switch s := int(c) / 100; s {
	case 400, 401, 402, 403, 404, 408, 413, 429, 431, 500, 501, 504:
		return s
	case 428: // PRECONDITION_FAILED; HTTP's 428 is about a missing condition
		return http.StatusPreconditionFailed
	case 505: // UNSUPPORTED and the like; HTTP's 505 is about HTTP itself
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}

// writeProblem responds with p. It sets the type, and the title if there is none.
func writeProblem(w http.ResponseWriter, p *problem) {
	p.Type = "about:blank"
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(time.Duration(p.RetryAfter).Seconds()))))
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

// writeNotAllowed responds to a method that a path does not accept.
func writeNotAllowed(w http.ResponseWriter, r *http.Request, methods []string) {
	if slices.Contains(methods, "GET") {
		methods = append(slices.Clone(methods), "HEAD")
	}
	slices.Sort(methods)
	list := strings.Join(methods, ", ")
	w.Header().Set("Allow", list)
	writeProblem(w, &problem{Status: http.StatusMethodNotAllowed, Detail: r.URL.Path + " accepts " + list + ", not " + r.Method})
}

// compact is a value whose JSON is written without indentation, because it has many small parts.
type compact struct{ Value any }

// writeJSON writes v as the response, indented for people unless it is compact.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	var b bytes.Buffer
	e := stdjson.NewEncoder(&b)
	e.SetEscapeHTML(false) // for people; the header prevents browsers from treating it as HTML
	if c, ok := v.(compact); ok {
		v = c.Value
	} else {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil { // only a programming mistake
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // it fails only if the client has gone
}

// A urlQuery reads the parameters of a request's URL. One that is missing has its
// zero value.
type urlQuery struct {
	Err error // of the first parameter that is wrong, nil if none is

	values url.Values
}

// queryOf rejects unknown parameters, and repeated ones except for lists.
func queryOf(r *http.Request, known ...string) *urlQuery {
	values, err := values(r)
	q := &urlQuery{values: values, Err: err}
	for name := range q.values {
		if !slices.Contains(known, name) {
			q.fail(name, "it is unknown; the parameters are %s", strings.Join(known, ", "))
		}
	}
	return q
}

// values returns all parameters of a request's URL. It rejects malformed ones, which url.URL.Query
// drops.
func values(r *http.Request) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refusal.New(tidegate.CodeBadRequest, "query",
			"the query %.200q is malformed (%v); in a value, write %% as %%25 and ; as %%3B", r.URL.RawQuery, err)
	}
	return values, nil
}

func (q *urlQuery) fail(name, format string, args ...any) {
	if q.Err == nil {
		q.Err = refusal.New(tidegate.CodeBadRequest, name, "parameter %.100q: "+format, append([]any{name}, args...)...)
	}
}

// Text takes a parameter as it is.
func (q *urlQuery) Text(name string) string {
	if len(q.values[name]) > 1 {
		q.fail(name, "it is given %d times; give it once", len(q.values[name]))
	}
	return q.values.Get(name)
}

// List takes a parameter that may be repeated.
func (q *urlQuery) List(name string) []string { return q.values[name] }

// Number takes a whole number.
func (q *urlQuery) Number(name string) int {
	s := q.Text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		q.fail(name, "%.100q is not a whole number", s)
	}
	return n
}

// Yes takes true or false.
func (q *urlQuery) Yes(name string) bool {
	switch s := q.Text(name); s {
	case "", "false":
		return false
	case "true":
		return true
	default:
		q.fail(name, "it is %.100q; give true or false", s)
	}
	return false
}

// Time takes a time as in RFC 3339.
func (q *urlQuery) Time(name string) time.Time {
	s := q.Text(name)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		q.fail(name, "%.100q is not a time; give one such as 2026-01-31T12:00:00Z", s)
	}
	return t
}

// readPatch reads the request's body, a JSON merge patch (RFC 7396), and returns a function that
// applies it: a key that the patch names replaces the value, null means its default, and other keys
// stay. The errors are those of readJSON.
func readPatch[T any](w http.ResponseWriter, r *http.Request) (apply func(*T) error, err error) {
	raw, err := readBody(w, r, maxAdminBody)
	if err != nil {
		return nil, err
	}
	if err := declaredJSON(r); err != nil {
		return nil, err
	}
	var checked map[string]jsontext.Value
	if err := decodeJSON(raw, &checked); err != nil {
		return nil, err
	}
	return func(v *T) error {
		now, err := json.Marshal(v)
		if err != nil {
			return err
		}
		merged, err := merge(now, raw, reflect.TypeFor[T](), "")
		if err != nil {
			return err
		}
		var next T
		if err := decodeJSON(merged, &next); err != nil {
			return err
		}
		*v = next
		return nil
	}, nil
}

// merge returns a JSON value after a merge patch. t is its type, and at its path. It rejects
// unknown keys, because a null of one would have no effect.
func merge(value, patch jsontext.Value, t reflect.Type, at jsontext.Pointer) (jsontext.Value, error) {
	if patch.Kind() != '{' || t.Kind() != reflect.Struct {
		return patch, nil // the decoder checks the type
	}
	var changes, out map[string]jsontext.Value
	if err := json.Unmarshal(patch, &changes); err != nil {
		return nil, badBody("%s", diagnose(patch, err))
	}
	if value.Kind() != '{' || json.Unmarshal(value, &out) != nil || out == nil {
		out = map[string]jsontext.Value{}
	}
	for key, change := range changes {
		keys := jsonKeys(t)
		if !slices.Contains(keys, key) {
			return nil, badBody("%s", unknownKey(at.AppendToken(key), keys))
		}
		if change.Kind() == 'n' {
			delete(out, key)
			continue
		}
		below, err := merge(out[key], change, typeOf(t, key), at.AppendToken(key))
		if err != nil {
			return nil, err
		}
		out[key] = below
	}
	return json.Marshal(out, json.Deterministic(true))
}

// typeOf returns the type of the field of a struct with a key.
func typeOf(t reflect.Type, key string) reflect.Type {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == key {
			return f.Type
		}
	}
	return reflect.TypeFor[any]()
}

// entryNames reports whether a JSON object has a key.
func entryNames(object []byte, key string) bool {
	var keys map[string]jsontext.Value
	return json.Unmarshal(object, &keys) == nil && keys[key] != nil
}

// headerIfMatch is the header of a change on the condition that the settings have a revision.
const headerIfMatch = "If-Match"

// setETag sets the header ETag to the revision of settings. An empty revision sets nothing.
func setETag(w http.ResponseWriter, revision string) {
	if revision != "" {
		w.Header().Set("ETag", `"`+revision+`"`)
	}
}

// ifMatch returns the condition of the header If-Match on the revision of the topic or group, which
// is empty if there is none. Without the header it returns nil. The condition fails with 42800; the
// error of a malformed header is 40000.
func ifMatch(r *http.Request, what, name string) (may func(revision string) error, err error) {
	given := r.Header.Values(headerIfMatch)
	if len(given) == 0 {
		return nil, nil //nolint:nilnil // no condition
	}
	text := strings.Join(given, ", ")
	wanted, ok := revisions(text)
	if !ok {
		return nil, refusal.New(tidegate.CodeBadRequest, headerIfMatch, `the header If-Match is %.100q; give the ETag of a response with its quotes, several of them with commas between, or *`, text)
	}
	return func(now string) error {
		switch {
		case now == "":
			return refusal.New(protocol.CodePreconditionFailed, name, "the %s %s does not exist, but If-Match demands that it does; leave If-Match out to create it", what, name)
		case text == "*" || slices.Contains(wanted, now):
			return nil
		}
		return refusal.New(protocol.CodePreconditionFailed, name, `the settings of the %s %s have the revision %q, and If-Match demands %.100s: another change came first; read the %s again, and repeat the change with its ETag`,
			what, name, now, text, what)
	}, nil
}

// revisions returns the strong entity tags of a list (RFC 9110, 13.1.1), which alone can match, and
// whether the list is well formed.
func revisions(list string) (strong []string, ok bool) {
	if list == "*" {
		return nil, true
	}
	for tag := range strings.SplitSeq(list, ",") {
		tag, weak := strings.CutPrefix(strings.TrimSpace(tag), "W/")
		if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' || strings.Contains(tag[1:len(tag)-1], `"`) {
			return nil, false
		}
		if !weak {
			strong = append(strong, tag[1:len(tag)-1])
		}
	}
	return strong, true
}

// diagnose returns the fault of a JSON text that cannot be decoded because of err, with the path of
// the field: messages[3].tag.
func diagnose(raw []byte, err error) string {
	syntax, isSyntax := errors.AsType[*jsontext.SyntacticError](err)
	fault, isFault := errors.AsType[*json.SemanticError](err)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it is truncated; the JSON object has no end"
	case errors.Is(err, jsontext.ErrDuplicateName) && isSyntax:
		return fmt.Sprintf("key %q is repeated%s; give it once", syntax.JSONPointer.LastToken(), within(syntax.JSONPointer.Parent()))
	case isSyntax && invalidUTF8(raw[min(int(syntax.ByteOffset), len(raw)):]):
		return fmt.Sprintf("it is not UTF-8 at byte %d; send binary data in body, in base64", syntax.ByteOffset)
	case isSyntax:
		return fmt.Sprintf("it is not JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)
	case errors.Is(err, json.ErrUnknownName) && isFault:
		return unknownKey(fault.JSONPointer, jsonKeys(fault.GoType))
	case isFault:
		return wrongValue(raw, fault)
	}
	return err.Error()
}

// invalidUTF8 reports whether a text begins with a byte that is not UTF-8.
func invalidUTF8(text []byte) bool {
	r, n := utf8.DecodeRune(text)
	return r == utf8.RuneError && n == 1
}

// unknownKey returns the error of an unknown key, with a suggestion.
func unknownKey(at jsontext.Pointer, keys []string) string {
	text := fmt.Sprintf("key %q is unknown%s: ", at.LastToken(), within(at.Parent()))
	if n := nearest.Name(at.LastToken(), keys); n != "" {
		text += "did you mean " + n + "? "
	}
	return text + "the keys are " + strings.Join(keys, ", ")
}

// wrongValue returns the error of one value.
func wrongValue(raw []byte, fault *json.SemanticError) string {
	value, t := raw[min(int(fault.ByteOffset), len(raw)):], fault.GoType
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	is := name(fault.JSONPointer) + " is " + kindOfJSON(value)
	wrongType := fault.Err == nil || errors.Is(fault.Err, strconv.ErrSyntax) || errors.Is(fault.Err, strconv.ErrRange)
	switch {
	case t == reflect.TypeFor[time.Time]():
		return is + ", which is not a time; give one in the form of RFC 3339, such as \"2026-01-31T15:04:05Z\""
	case t == reflect.TypeFor[backoff.Steps]() && value[0] != '"':
		return is + "; give one text with all intervals, such as \"10s 30s 1m\""
	case t == reflect.TypeFor[[]byte]() && wrongType:
		return is + "; give a text in base64"
	case t == reflect.TypeFor[[]byte]():
		return name(fault.JSONPointer) + " is not base64 (" + fault.Err.Error() + "); send plain text in body_text"
	case wrongType && t.Kind() == reflect.Slice:
		return is + "; give a list"
	case wrongType && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		return is + "; give an object"
	case wrongType:
		return is + ", which has the wrong type; give a " + strings.NewReplacer("int64", "whole number", "int", "whole number", "bool", "boolean").Replace(t.Kind().String())
	}
	return name(fault.JSONPointer) + ": " + fault.Err.Error()
}

// name returns a path in the words of a person: messages[3].tag, or "it" for the whole text.
func name(at jsontext.Pointer) string {
	var path strings.Builder
	for token := range at.Tokens() {
		switch _, err := strconv.Atoi(token); {
		case err == nil:
			path.WriteString("[" + token + "]")
		case path.Len() > 0:
			path.WriteString("." + token)
		default:
			path.WriteString(token)
		}
	}
	if path.Len() == 0 {
		return "it"
	}
	return path.String()
}

func within(at jsontext.Pointer) string {
	if at == "" {
		return ""
	}
	return " in " + name(at)
}

// kindOfJSON returns the kind of the value that a text begins with, and the value if it is short.
func kindOfJSON(text []byte) string {
	kind, ok := map[byte]string{'{': "an object", '[': "a list", '"': "a string", 't': "a boolean", 'f': "a boolean"}[text[0]]
	if !ok {
		kind = "a number"
	}
	value, err := jsontext.NewDecoder(strings.NewReader(string(text[:min(len(text), 41)]))).ReadValue()
	if err != nil || text[0] == '{' || text[0] == '[' || len(value) > 40 {
		return kind
	}
	return kind + " (" + string(value) + ")"
}

// jsonKeys returns the keys of a struct in JSON, in the order of its fields.
func jsonKeys(t reflect.Type) (keys []string) {
	for _, f := range reflect.VisibleFields(t) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && key != "-" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
