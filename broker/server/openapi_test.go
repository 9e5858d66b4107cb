package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/model"
)

var document = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(context.Background(), openapi3.IsOpenAPI31OrLater()) // for all tests
})

func loadDocument(t testing.TB) *openapi3.T {
	t.Helper()
	doc := assert.Value(document())(t)
	return doc
}

// Every route and method that the server has is in openapi.yaml, with its
// operation's name, and the reverse.
func TestOpenAPIHasAllRoutes(t *testing.T) {
	doc := loadDocument(t)
	missing := map[string]string{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			missing[method+" "+path] = op.OperationID
			assert.That(t, op.Summary != "" && len(op.Tags) == 1, "%s %s has no summary, or not one tag", method, path)
		}
	}
	ops := map[string]bool{}
	for _, rt := range start(t, server.Options{}).s.Routes() {
		key := rt.Method + " " + rt.Path
		if op, ok := missing[key]; !ok {
			t.Errorf("openapi.yaml has no %s (operationId %s)", key, rt.Op)
		} else if op != rt.Op || ops[op] {
			t.Errorf("%s is %q in openapi.yaml and %q in routes, or another one has that name", key, op, rt.Op)
		}
		ops[rt.Op] = true
		delete(missing, key)
	}
	for key := range missing {
		t.Errorf("openapi.yaml has %s, which the server does not serve", key)
	}
}

// The package comment has every route too, and no other one.
func TestPackageCommentHasAllRoutes(t *testing.T) {
	text := assert.Value(os.ReadFile("server.go"))(t)
	text, _, _ = bytes.Cut(text, []byte("\npackage server"))
	told := map[string]bool{}
	for _, m := range regexp.MustCompile(`([A-Z]+(?:, [A-Z]+)*) (/[^\s:;]+)`).FindAllStringSubmatch(string(text), -1) {
		for method := range strings.SplitSeq(m[1], ", ") {
			told[method+" "+m[2]] = true
		}
	}
	for _, rt := range start(t, server.Options{}).s.Routes() {
		assert.That(t, told[rt.Pattern], "the package comment has no %s", rt.Pattern)
		delete(told, rt.Pattern)
	}
	for route := range told {
		t.Errorf("the package comment has %s, which there is not", route)
	}
}

// The fields of a schema are those of the Go type, and the reverse.
func TestOpenAPISchemas(t *testing.T) {
	schemas := loadDocument(t).Components.Schemas
	for name, v := range map[string]any{
		"TopicConfig": settings.Topic{}, "Topic": status.Topic{}, "GroupConfig": settings.Group{}, "Group": status.Group{},
		"Subscription": status.Subscription{}, "Backlog": status.Backlog{}, "Limit": settings.Limit{}, "Throttle": status.Throttle{},
		"LimitState": status.LimitState{}, "Limits": settings.Limits{}, "Rate": settings.Rate{}, "Quota": settings.Quota{}, "Pressure": settings.Pressure{}, "ThrottleState": status.Throttles{},
		"Problem": server.Problem{}, "Message": server.Message{}, "SendResult": server.SendResult{}, "Delivery": httpapi.Delivery{},
		"ReceiveRequest": server.ReceiveRequest{}, "AcknowledgeRequest": server.AckRequest{}, "ChangeInvisibleDurationRequest": server.ChangeRequest{},
		"ChangeInvisibleDurationResult": server.ChangeResult{}, "RetryRequest": server.RetryRequest{}, "DeadLetterRequest": server.DeadLetterRequest{},
		"ReconsumeRequest": server.ReconsumeRequest{}, "Reconsumed": server.ReconsumeResult{}, "RetryResult": server.RetryResult{}, "SnoozeRequest": server.SnoozeRequest{}, "NegativeAckRequest": server.NegativeAckRequest{},
		"RetryTopicConfig": settings.RetryTopic{}, "NegativeAckConfig": settings.NegativeAck{},
		"AddressSettings": settings.Address{}, "AddressSetting": status.Address{}, "TopicAddressSettings": status.TopicAddress{},
		"RecallRequest": server.RecallRequest{}, "RecallResult": server.RecallResult{}, "Status": struct {
			Status string `json:"status"`
		}{},
		"Live": server.Live{}, "History": engine.HistoryResult{}, "HistorySeries": engine.HistorySeries{}, "HistoryLeftOut": engine.HistoryLeftOut{}, "HistoryCounters": engine.HistoryCounters{}, "TopicSummaries": server.TopicSummaries{}, "GroupSummaries": server.GroupSummaries{},
		"AuditPage": status.AuditPage{}, "AuditRecord": status.AuditRecord{},
		"ClientPage": status.ClientPage{}, "Client": status.Client{}, "ClientVersion": status.ClientVersion{},
		"Session": status.Session{}, "Rule": status.Rule{},
		"Overview": status.Overview{}, "Storage": status.Storage{}, "MemoryUse": status.MemoryUse{}, "Totals": status.Totals{}, "Counters": status.Counters{},
		"Top": status.Top{}, "Wrong": status.Wrong{}, "FoundGroups": status.Found[status.GroupSummary]{}, "TopicSummary": status.TopicSummary{}, "GroupSummary": status.GroupSummary{},
		"RewindRequest": server.RewindRequest{}, "RewindResult": server.RewindResult{}, "QueueRewind": status.QueueRewind{}, "ParkedPage": status.ParkedPage{},
		"ParkedGroup": status.ParkedGroup{}, "ParkedSelection": server.ParkedRedriveRequest{}, "ParkedRedrive": status.ParkedRedrive{},
		"Topics": server.TopicList{}, "Groups": server.GroupList{}, "Trace": status.Trace{}, "TracedMessage": status.TracedMessage{}, "Fate": status.Fate{}, "MessagePage": status.MessagePage{}, "StoredMessage": status.StoredMessage{},
		"QueuePage": status.QueuePage{}, "Queue": status.Queue{}, "GroupQueuePage": status.GroupQueuePage{}, "GroupQueue": status.GroupQueue{},
		"LeasePage": status.LeasePage{}, "Lease": status.Lease{}, "Schedule": status.Schedule{}, "DueBucket": status.DueBucket{},
		"FailurePage": status.FailurePage{}, "Failure": status.Failure{},
		"DeadLetterCount": status.DeadLetterCount{}, "DeadLetterClassPage": status.DeadLetterClassPage{}, "DeadLetterClass": status.DeadLetterClass{},
		"DeadLetterPage": status.DeadLetterPage{}, "DeadLetter": status.DeadLetter{}, "DeadLetterOrigin": tidegate.DeadLetter{},
		"DeadLetterSelection": status.DeadLetterSelection{}, "DeadLetterRedrive": status.DeadLetterRedrive{}, "DeadLetterPurge": status.DeadLetterPurge{},
	} {
		ref := schemas[name]
		if ref == nil {
			t.Errorf("openapi.yaml has no schema %s", name)
			continue
		}
		have := properties(ref.Value)
		want := server.Keys(reflect.TypeOf(v))
		for _, key := range want {
			assert.That(t, have[key], "schema %s has no property %s, which %T has", name, key, v)
			delete(have, key)
		}
		for key := range have {
			t.Errorf("schema %s has the property %s, which %T has not", name, key, v)
		}
	}
}

// The broker has a counter for each limit, which TestNamesAreComplete of package engine
// compares with the constants. Two of the counters belong to no Throttle.
func TestOpenAPIThrottleLimits(t *testing.T) {
	b := assert.Value(broker.Open(broker.Options{}))(t)
	defer b.Close()
	want := b.Engine().Stats().Throttled
	delete(want, "client quota") // the error of the send reports it
	delete(want, "other")
	limit := loadDocument(t).Components.Schemas["ThrottleFields"].Value.Properties["limit"]
	for _, name := range limit.Value.Enum {
		if _, ok := want[name.(string)]; !ok {
			t.Errorf("openapi.yaml has the limit %q, which the broker does not have", name)
		}
		delete(want, name.(string))
	}
	for name := range want {
		t.Errorf("openapi.yaml does not have the limit %q of the broker", name)
	}
}

func properties(s *openapi3.Schema) map[string]bool {
	out := map[string]bool{}
	for key := range s.Properties {
		out[key] = true
	}
	for _, part := range s.AllOf {
		maps.Copy(out, properties(part.Value))
	}
	return out
}

// checkHTTP returns h with a comparison of every accepted request, and of every response, with
// openapi.yaml.
func checkHTTP(t testing.TB, h http.Handler) http.Handler {
	doc := loadDocument(t)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sent []byte
		if r.Header.Get("Content-Type") != server.TypeNDJSON && r.Body != nil {
			var err error
			if sent, err = io.ReadAll(r.Body); err == nil {
				r.Body = io.NopCloser(bytes.NewReader(sent))
			}
		}
		rec := &taped{ResponseWriter: w}
		h.ServeHTTP(rec, r)
		_, path, ok := strings.Cut(r.Pattern, " ")
		if !ok { // 404 and 405
			if rec.status < 400 || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s: %d of type %s without a route", r.Method, r.URL, rec.status, w.Header().Get("Content-Type"))
			}
			return
		}
		item := doc.Paths.Value(path)
		if item == nil || item.GetOperation(r.Method) == nil && r.Method != "HEAD" {
			return // TestOpenAPIHasAllRoutes reports it
		}
		checkExchange(t, r, routers.Route{Spec: doc, Path: path, PathItem: item, Method: r.Method, Operation: item.GetOperation(r.Method)}, sent, rec)
	})
}

// exchanges has the number of exchanges by operation and status, as *atomic.Int64.
var exchanges sync.Map

// checkExchange compares the first three exchanges of an operation with a status, and a part of the
// others: the library compiles the schema for each.
func checkExchange(t testing.TB, r *http.Request, route routers.Route, sent []byte, rec *taped) {
	if route.Operation == nil { // HEAD
		return
	}
	n, _ := exchanges.LoadOrStore(fmt.Sprint(route.Operation.OperationID, rec.status), new(atomic.Int64))
	if n := n.(*atomic.Int64).Add(1); n > 3 && int(n)%everyExchange() != 0 {
		return
	}
	what := r.Method + " " + r.URL.String()
	params := map[string]string{}
	for _, key := range []string{"topic", "group", "match", "id"} {
		if v := r.PathValue(key); v != "" {
			params[key] = v
		}
	}
	copied := r.Clone(context.WithoutCancel(r.Context()))
	copied.Body = io.NopCloser(bytes.NewReader(sent))
	stream := r.Header.Get("Content-Type") == server.TypeNDJSON
	if given := r.Header.Get("Content-Type"); slices.Contains(route.Operation.Tags, "administration") && (given == "" || given == "application/x-www-form-urlencoded") {
		copied.Header.Set("Content-Type", server.TypeJSON) // it needs none, and curl sends another
	}
	in := &openapi3filter.RequestValidationInput{
		Request: copied, PathParams: params, Route: &route, Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeRequestBody: stream},
	}
	if rec.status < 300 {
		if err := openapi3filter.ValidateRequest(copied.Context(), in); err != nil {
			t.Errorf("%s was accepted, but not by openapi.yaml: %v", what, err)
		}
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: rec.status, Header: rec.Header(), Options: in.Options,
	}
	if rec.Header().Get("Content-Type") == server.TypeNDJSON {
		schema := "SendResult"
		switch route.Operation.OperationID {
		case "receiveMessages":
			schema = "Delivery"
		case "live":
			schema = "Live"
		}
		checkLines(t, route.Spec, what, schema, rec.tape.Bytes())
		return
	}
	if ct := rec.Header().Get("Content-Type"); strings.HasPrefix(ct, "application/yaml") || strings.HasPrefix(ct, server.TypeText) {
		return
	}
	if err := openapi3filter.ValidateResponse(copied.Context(), out.SetBodyBytes(rec.tape.Bytes())); err != nil {
		t.Errorf("%s: the response %d does not match openapi.yaml: %v\n%s", what, rec.status, err, rec.tape.Bytes())
	}
}

// everyExchange returns 5, or 1 with the flag -model.all.
func everyExchange() int { return 6 - model.Rounds(5) }

// checkLines compares each line of a stream with a schema.
func checkLines(t testing.TB, doc *openapi3.T, what, schema string, text []byte) {
	lines := slices.Collect(bytes.Lines(text))
	every := everyExchange()
	for i, line := range lines {
		if i >= 20 && i < len(lines)-2 && i%every != 0 {
			continue
		}
		var v map[string]any
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := json.Unmarshal(line, &v); err != nil {
			assert.That(t, i >= len(lines)-1, "%s: line %d is not JSON: %v", what, i+1, err)
			continue // cut off
		}
		use := schema
		if _, last := v["error"]; last {
			use = "SendResult"
		}
		if err := doc.Components.Schemas[use].Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
			t.Errorf("%s: line %d is not as schema %s: %v\n%s", what, i+1, use, err, line)
		}
	}
}

// taped records the responses.
type taped struct {
	http.ResponseWriter
	status int // 0: none yet
	tape   bytes.Buffer
}

func (w *taped) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *taped) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.tape.Write(b)
	return w.ResponseWriter.Write(b)
}

func (w *taped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// The check itself can fail.
func TestOpenAPICheckFindsUnknownFields(t *testing.T) {
	schemas := loadDocument(t).Components.Schemas
	for name, v := range map[string]string{
		"TopicConfig": `{"queue":1}`, "Topic": `{"name":"a","x":1}`, "Message": `{"topic":"a"}`, "Limit": `{"messages":-1}`,
		"Duration": `"soon"`, "ReceiveRequest": `{"max":0}`, "AcknowledgeRequest": `{"handles":[]}`, "Problem": `{"status":400}`,
	} {
		var decoded any
		assert.Must(t, json.Unmarshal([]byte(v), &decoded))
		if err := schemas[name].Value.VisitJSON(decoded, openapi3.EnableJSONSchema2020()); err == nil {
			t.Errorf("schema %s takes %s", name, v)
		}
	}
}
