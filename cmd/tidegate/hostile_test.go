package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// evil has the characters that control a terminal: a title, a cleared screen, BEL, NUL, backspace,
// CR, DEL, C1, the direction marks of "Trojan Source", and line and paragraph separators. It also
// begins a line of its own.
const evil = "\x1b]0;title\x07\x1b[2J\x00\b\rX\x7f\u0080\u009b1m\u009f\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u2028\u2029\nFORGED"

// controlled returns the part of an output that a terminal obeys, or that is no line of the
// command.
func controlled(out string) string {
	for i, r := range out {
		_, size := utf8.DecodeRuneInString(out[i:])
		switch {
		case r == '\n' || r == '\t':
		case r == utf8.RuneError && size == 1, unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r), r == '\u2028', r == '\u2029':
			return fmt.Sprintf("%q", out[max(0, i-60):min(len(out), i+20)])
		}
	}
	if i := strings.Index("\n"+out, "\nFORGED"); i >= 0 {
		return fmt.Sprintf("%q", out[max(0, i-60):min(len(out), i+20)])
	}
	return ""
}

// A hostile server is a broker whose responses have evil in every text. It removes evil from the
// requests, so that the commands do their work.
type hostile struct {
	t       testing.TB
	http    string                 // of the broker
	conn    *grpc.ClientConn       // to the broker
	refuses atomic.Pointer[string] // how it rejects requests; nil if it does not
}

// newHostile returns a tool of a hostile server in front of a broker.
func newHostile(t *testing.T, tl *tool) (*hostile, *tool) {
	t.Helper()
	conn := assert.Value(grpc.NewClient(tl.grpc, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	h := &hostile{t: t, http: tl.http, conn: conn}
	web := httptest.NewServer(h)
	listener := assert.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer(grpc.UnknownServiceHandler(h.stream))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		web.Close()
		_ = conn.Close()
	})
	front := *tl
	front.grpc, front.http, front.env = listener.Addr().String(), web.URL, map[string]string{}
	maps.Copy(front.env, tl.env)
	front.env["TIDEGATE_SERVER_GRPC"], front.env["TIDEGATE_SERVER_HTTP"] = front.grpc, front.http
	return h, &front
}

func clean(text string) string { return strings.ReplaceAll(text, evil, "") }

// ServeHTTP passes a request on and poisons the response.
func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch how := h.refuses.Load(); {
	case how != nil && *how == "problem":
		problem := map[string]any{"type": evil, "title": "X" + evil, "detail": "detail" + evil, "instance": evil, "hint": evil, "subject": evil, "request_id": evil, "code": 40000, "status": 400}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(problem)
		return
	case how != nil:
		w.Header().Set("Content-Type", "text/html"+strings.Map(func(r rune) rune { return -1 }, evil))
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "not found"+evil+"\x9b\xff")
		return
	}
	uri := strings.NewReplacer(url.PathEscape(evil), "", url.QueryEscape(evil), "").Replace(r.RequestURI)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var doc any
	if json.Unmarshal(body, &doc) == nil {
		body, _ = json.Marshal(walk(doc, "", clean))
	}
	forward, err := http.NewRequestWithContext(r.Context(), r.Method, h.http+uri, bytes.NewReader(body))
	if err != nil {
		h.t.Error(err)
		return
	}
	forward.Header = r.Header.Clone()
	forward.Header.Del("Accept-Encoding")
	response, err := http.DefaultClient.Do(forward)
	if err != nil {
		return // the client has ended
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return
	}
	for name, values := range response.Header {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(response.StatusCode)
	poisoned := false
	for d := json.NewDecoder(bytes.NewReader(text)); ; poisoned = true {
		d.UseNumber()
		var doc any
		if d.Decode(&doc) != nil {
			break
		}
		_ = json.NewEncoder(w).Encode(walk(doc, "", poison))
	}
	if !poisoned && len(text) > 0 {
		_, _ = io.WriteString(w, strings.ReplaceAll(string(text), "\n", " \x1b[2J\x7f\u009b\u202e\xff\n"))
	}
}

// poison adds evil to a text that is neither a time nor a duration.
func poison(text string) string {
	if _, err := time.Parse(time.RFC3339, text); err == nil {
		return text
	}
	if _, err := time.ParseDuration(strings.Fields(text + " 0s")[0]); err == nil {
		return text
	}
	return text + evil
}

// walk changes all texts of a JSON value.
func walk(v any, name string, change func(string) string) any {
	switch v := v.(type) {
	case string:
		if name == "body" || name == "handle" {
			return v // base64
		}
		return change(v)
	case []any:
		for i := range v {
			v[i] = walk(v[i], name, change)
		}
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			if name == "properties" || name == "filters" {
				key = change(key)
			}
			out[key] = walk(value, key, change)
		}
		return out
	}
	return v
}

// stream passes a call of gRPC on and poisons the responses.
func (h *hostile) stream(_ any, s grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(s)
	_, method, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	of := rmqpb.File_tidegate_rmq_v2_service_proto.Services().Get(0).Methods().ByName(protoreflect.Name(method))
	if of == nil {
		return status.Error(codes.Unimplemented, evil)
	}
	how := h.refuses.Load()
	if how != nil && *how == "status" {
		return status.Error(codes.InvalidArgument, "invalid"+evil)
	}
	md, _ := metadata.FromIncomingContext(s.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(s.Context(), md))
	defer cancel()
	to, err := h.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	go func() {
		for {
			m := dynamicpb.NewMessage(of.Input())
			if s.RecvMsg(m) != nil {
				_ = to.CloseSend()
				return
			}
			walkProto(m, clean)
			if to.SendMsg(m) != nil {
				return
			}
		}
	}()
	for {
		m := dynamicpb.NewMessage(of.Output())
		if err := to.RecvMsg(m); err != nil {
			if err == io.EOF {
				return nil
			}
			return status.Error(status.Code(err), err.Error()+evil)
		}
		if how != nil && *how == "problem" && method != "QueryRoute" && method != "Telemetry" {
			refuseProto(m)
		}
		walkProto(m, poison)
		if err := s.SendMsg(m); err != nil {
			return err
		}
	}
}

// walkProto changes all texts of a message, except those that the client connects to or computes
// with.
func walkProto(m protoreflect.Message, change func(string) string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(f.Name())
		if name == "host" || name == "checksum" {
			return true
		}
		switch {
		case f.IsMap():
			entries := map[string]string{}
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries[k.String()] = v.String()
				return true
			})
			for k, v := range entries {
				m.Mutable(f).Map().Clear(protoreflect.ValueOfString(k).MapKey())
				m.Mutable(f).Map().Set(protoreflect.ValueOfString(change(k)).MapKey(), protoreflect.ValueOfString(change(v)))
			}
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range v.List().Len() {
				walkProto(v.List().Get(i).Message(), change)
			}
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfString(change(v.List().Get(i).String())))
			}
		case f.IsList():
		case f.Kind() == protoreflect.MessageKind:
			walkProto(v.Message(), change)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(change(v.String())))
		}
		return true
	})
}

// refuseProto makes a response the rejection of an invalid message ID.
func refuseProto(m *dynamicpb.Message) {
	f := m.Descriptor().Fields().ByName("status")
	if f == nil {
		return
	}
	st := m.Mutable(f).Message()
	fields := st.Descriptor().Fields()
	st.Set(fields.ByName("code"), protoreflect.ValueOfEnum(40009))
	st.Set(fields.ByName("message"), protoreflect.ValueOfString("rejected"+evil))
	if entries := m.Descriptor().Fields().ByName("entries"); entries != nil {
		m.Clear(entries)
	}
}

// Texts of a server do not control the terminal, in any command, format and field: those of
// messages, names, states and clients, of errors, and of responses that are no JSON.
func TestHostileServer(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	h, front := newHostile(t, tl)
	prepareHostile(t, tl)
	front.must("context", "add", "target", "--grpc", tl.grpc, "--http", tl.http)
	idle, stop := context.WithCancel(t.Context())
	defer stop()
	var log lockedBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(idle, []string{"receive", "idle", "reminders", "--then", "ack", "--follow"}, tl.app(io.Discard, &log))
	}()
	for tl.must("clients", "list", "-o", "name").stdout == "" {
		if len(ended) > 0 {
			t.Fatalf("the idle client ended with %d: %s", <-ended, log.String())
		}
		runtime.Gosched()
	}
	quiet := map[string]bool{} // commands that print no text of the server if all goes well
	for _, name := range []string{
		"address set", "apply", "check", "context show", "context test", "dead-letters purge", "dead-letters redrive", "doctor", "group create", "group delete",
		"group rewind", "limits set", "limits show", "parked redrive", "send", "topic create", "topic purge",
	} {
		quiet[name] = true
	}
	for _, how := range []string{"", "problem", "status"} {
		h.refuses.Store(nil)
		formats := []string{"table", "table on a terminal", "wide", "json", "jsonl", "name"}
		if how != "" {
			h.refuses.Store(&how)
			formats = []string{"table", "json"}
		}
		for _, c := range leaves(serve.Root(&cli.App{Env: os.Getenv})) {
			path := words(c)
			name := strings.Join(path, " ")
			if path[0] == "version" || path[0] == "console" || path[0] == "bench" || path[0] == "context" && path[1] != "test" && path[1] != "show" {
				continue // without a response of the server
			}
			shown := false
			for _, format := range formats {
				form, where, _ := strings.Cut(format, " ")
				front.terminal = where != ""
				r := front.bounded("topics: {x1: {}}", append(hostileArgs(tl, c), "-o", form)...)
				if front.terminal {
					r.stderr = progress.ReplaceAllString(r.stderr, "")
				}
				for stream, text := range map[string]string{"stdout": r.stdout, "stderr": r.stderr} {
					if part := controlled(text); part != "" {
						t.Errorf("%s -o %s, server %q, exit code %d: %s has %s", name, format, how, r.code, stream, part)
					}
					shown = shown || strings.Contains(text, `x1b[2J`) || strings.Contains(text, `u001b[2J`)
				}
				if how == "" && strings.HasPrefix(form, "json") && r.code == 0 {
					valuesOf(t, name, r.stdout)
				}
			}
			assert.That(t, shown || (how == "" || path[0] == "context") && (how != "" || quiet[name]), "%s, server %q: no text of the server was shown, the test does not see the output", name, how)
		}
	}
}

// progress is the line of a command that counts on a terminal.
var progress = regexp.MustCompile(`\r[0-9 ]+, [0-9 ]+ a second |\r\x1b\[K`)

// valuesOf fails if an output is no sequence of JSON values.
func valuesOf(t *testing.T, name, out string) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			return
		} else if err != nil {
			t.Errorf("%s: the output is no JSON: %v\n%s", name, err, out)
			return
		}
	}
}

// JSON has the texts of a server unchanged, although it has no character that controls a terminal.
func TestHostileTextInJSON(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	_, front := newHostile(t, tl)
	tl.must("send", "orders", "a", "--key", "k")
	got := lines[received](t, front.must("receive", "billing", "orders", "--then", "release", "--max", "1", "-o", "jsonl").stdout)
	assert.That(t, len(got) == 1 && len(got[0].Keys) == 1 && got[0].Keys[0] == "k"+evil && strings.HasSuffix(got[0].ID, evil), "the message is %+v", got)
}

// bounded runs a command for a limited time: some commands continue until Ctrl-C.
func (tl *tool) bounded(stdin string, args ...string) result {
	ctx, cancel := context.WithTimeout(tl.t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr lockedBuffer
	code := run(ctx, args, &cli.App{
		In: strings.NewReader(stdin), Out: &stdout, Err: &stderr, Terminal: tl.terminal, Watched: tl.terminal, Columns: map[bool]int{true: 80}[tl.terminal],
		Env: func(name string) string { return tl.env[name] },
	})
	return result{tl.t, strings.Join(args, " "), code, stdout.String(), stderr.String()}
}

// prepareHostile creates subjects with contents.
func prepareHostile(t *testing.T, tl *tool) {
	t.Helper()
	tl.must("topic", "create", "pays", "type=FIFO")
	tl.must("topic", "create", "reminders", "type=DELAY")
	tl.must("group", "create", "billing", "retry=10m")
	tl.must("group", "create", "ledger", "fifo=true", "on_exhausted=park", "max_attempts=1")
	tl.must("address", "set", "orders.#", "max-delivery-attempts=4")
	tl.must("send", "orders", "a", "--count", "200", "--key", "k", "--tag", "tag", "-p", "name=value")
	tl.must("send", "orders", "poison", "--id", "x1", "--key", "k", "--tag", "tag", "-p", "name=value")
	tl.must("receive", "billing", "orders", "--then", "dead=no such account", "--max", "100")
	tl.must("send", "pays", "no money", "--message-group", "account-7")
	tl.must("receive", "ledger", "pays", "--max", "1", "--then", "retry")
	tl.must("send", "reminders", "later", "--in", "10m")
}

// hostileArgs are the words of a command that has a result.
func hostileArgs(tl *tool, c *cobra.Command) []string {
	return resultArgs(tl, c, [4]string{"orders", "billing", "pays", "ledger"}, "x1")
}

// resultArgs are the words of a command that has a result: with a topic, its group, a FIFO topic
// with a group that parks, and the ID of a message.
func resultArgs(tl *tool, c *cobra.Command, subjects [4]string, id string) []string {
	tl.t.Helper()
	path := words(c)
	names := map[string]string{"TOPIC": subjects[0], "GROUP": subjects[1], "ID": id, "[ID]": id, "MATCH": "orders.#", "METHOD": "GET", "PATH": "/v1/topics", "HANDLE": "x1", "FILE": "-"}
	switch {
	case path[0] == "address" && path[1] == "delete":
		names["MATCH"] = "none.#"
	case path[0] == "parked":
		names["GROUP"], names["TOPIC"] = subjects[3], subjects[2]
	case path[0] == "dead-letters" && path[1] == "show":
		names["ID"] = strings.TrimSpace(strings.Split(tl.must("dead-letters", "list", subjects[1], "-o", "name", "--limit", "1").stdout, "\n")[0])
	}
	args := slices.Clone(path)
	for _, arg := range strings.Fields(c.Use)[1:] {
		switch name, known := names[arg]; {
		case known:
			args = append(args, name)
		case !strings.HasPrefix(arg, "["):
			args = append(args, "x1")
		}
	}
	further := map[string][]string{
		"receive":              {"--then", "release", "--max", "2", "--wait", "1s"},
		"send":                 {"body", "--ack-timeout", "1s"},
		"peek":                 {"--limit", "2"},
		"find":                 {"--limit", "2"},
		"move":                 {"--group", "mover", "--to", "target", "--wait", "10ms"},
		"dead-letters watch":   {"--since", "-1h", "--limit", "1"},
		"dead-letters redrive": {"--dry-run"},
		"dead-letters purge":   {"--dry-run"},
		"topic purge":          {"--dry-run"},
		"topic delete":         {"--dry-run"},
		"group delete":         {"--dry-run"},
		"group rewind":         {"--to", "earliest", "--dry-run"},
		"top":                  {"--once"},
		"topic set":            {"queues=5", "--dry-run"},
		"group set":            {"max_attempts=3", "--dry-run"},
		"retry preview":        {subjects[1]},
	}[strings.Join(path, " ")]
	args = append(args, further...)
	args = append(args, "--timeout", "5s", "--no-retry")
	if c.Flags().Lookup("yes") != nil {
		args = append(args, "--yes")
	}
	return args
}

// The broker rejects control characters in message IDs, over gRPC and over HTTP, as it does in
// keys.
func TestControlCharactersInIDs(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	for _, id := range []string{"\x1b]0;x\x07", "a\nb", "a\x00", "\u009b1m", "a\x7f"} {
		tl.fails(2, "control character", "send", "orders", "x", "--id", id)
		body := assert.Value(json.Marshal(map[string]any{"messages": []any{map[string]any{"id": id, "body": base64.StdEncoding.EncodeToString([]byte("x"))}}}))(t)
		if r := tl.run("api", "POST", "/v1/topics/orders/messages", string(body)); r.code != 2 || !strings.Contains(r.stderr+r.stdout, "control character") {
			t.Errorf("HTTP: ID %q: exit code %d, %s%s", id, r.code, r.stdout, r.stderr)
		}
	}
	tl.fails(7, "", "receive", "billing", "orders", "--then", "ack", "--wait", "10ms", "--expect", "1")
}

// receive --raw prints bodies as they are, and --format does so for a program; the programs of
// --exec get and print them as they are.
func TestRawOutputs(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	body := evil + "\xff\x80"
	tl.pipe(body, "send", "orders", "-")
	for name, args := range map[string][]string{
		"--raw":    {"--then", "release", "--max", "1", "--raw"},
		"--format": {"--then", "release", "--max", "1", "--format", `%b\n`},
		"--exec":   {"--exec", "cat; echo", "--max", "1"},
	} {
		tl.must(append([]string{"receive", "raw" + strings.Trim(name, "-"), "orders"}, args...)...).is(body + "\n")
	}
	tl.terminal = true
	if out := tl.must("receive", "terminal", "orders", "--then", "release", "--max", "1", "--format", `%b\n`).stdout; controlled(out) != "" {
		t.Errorf("on a terminal --format printed %q", out)
	}
}
