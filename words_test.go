package tidegate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*Error{
		`SendMessage "orders" at h:1: 40402 TOPIC_NOT_FOUND: create it: EOF`: {
			Op: "SendMessage", Subject: "orders", Endpoint: "h:1", Code: CodeTopicNotFound, Message: "create it", Err: errors.New("EOF"),
		},
		`SendMessage: 530 TOO_MANY_REQUESTS`:            {Op: "SendMessage", Code: CodeTooManyRequests},
		`530 TOO_MANY_REQUESTS: the backlog is 10`:      {Code: CodeTooManyRequests, Message: "530 TOO_MANY_REQUESTS: the backlog is 10"},
		`530 TOO_MANY_REQUESTS: please wait`:            {Code: CodeTooManyRequests, Message: "please wait"},
		`"body": 41302 MESSAGE_BODY_EMPTY: it is empty`: {Subject: "body", Code: CodeMessageBodyEmpty, Message: "it is empty"},
		`49999: odd`:                   {Code: 49999, Message: "odd"},
		`AckMessage: context canceled`: {Op: "AckMessage", Err: context.Canceled},
		`unavailable`:                  {Err: ErrUnavailable},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestErrorIs(t *testing.T) {
	sentinels := map[string]error{
		"throttled": ErrThrottled, "handle": ErrInvalidHandle, "topic": ErrTopicNotFound, "notfound": ErrNotFound, "invalid": ErrInvalid,
		"unauthorized": ErrUnauthorized, "forbidden": ErrForbidden, "unavailable": ErrUnavailable, "closed": ErrClosed,
	}
	for code, want := range map[Code]string{
		CodeTooManyRequests: "throttled", CodeInvalidReceiptHandle: "handle invalid", CodeTopicNotFound: "topic notfound",
		CodeConsumerGroupNotFound: "notfound", CodeMessageBodyTooLarge: "invalid", CodeMessagePropertiesTooLarge: "invalid",
		CodeUnauthorized: "unauthorized", CodeForbidden: "forbidden", CodeInternalServerError: "unavailable",
		CodeProxyTimeout: "unavailable", CodeRequestTimeout: "unavailable", CodeNotImplemented: "", CodeUnsupported: "", CodeOK: "", 0: "", 42901: "",
	} {
		err := fmt.Errorf("around: %w", &Error{Code: code, Err: context.Canceled})
		for name, sentinel := range sentinels {
			expected := strings.Contains(" "+want+" ", " "+name+" ")
			if got := errors.Is(err, sentinel); got != expected {
				t.Errorf("code %v is %s: %v, want %v", code, name, got, expected)
			}
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("code %v hides its cause", code)
		}
	}
	if got := (&Error{Code: CodeTooManyRequests}).ReplyCode(); got != 530 {
		t.Errorf("reply code %d, want 530 (RocketMQ: sending retry and throttling)", got)
	}
	if got := (&Error{Code: CodeForbidden}).ReplyCode(); got != 40300 {
		t.Errorf("reply code %d, want 40300", got)
	}
}

func TestRetryAfter(t *testing.T) {
	after := func(d time.Duration, cause error) error {
		return &Error{Code: CodeTooManyRequests, RetryAfter: d, Err: cause}
	}
	for _, tt := range []struct {
		err  error
		want time.Duration
	}{
		{nil, 0},
		{errors.New("no wish"), 0},
		{after(0, nil), 0},
		{after(time.Second, nil), time.Second},
		{after(-1, nil), 0},
		{fmt.Errorf("around: %w", after(time.Second, nil)), time.Second},
		{after(0, after(time.Second, nil)), time.Second},
		{errors.Join(context.DeadlineExceeded, after(-1, nil), fmt.Errorf("around: %w", after(time.Minute, nil))), time.Minute},
	} {
		if got := RetryAfter(tt.err); got != tt.want {
			t.Errorf("RetryAfter(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

// The limits of RocketMQ's proxy: one below, at, and above each.
func TestValidate(t *testing.T) {
	properties := func(n, size int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("k%03d", i)] = strings.Repeat("v", size)
		}
		return m
	}
	for _, c := range []struct {
		name   string
		change func(*Message)
		code   Code
		says   string
	}{
		{"good", func(*Message) {}, 0, ""},
		{"topic of 127", func(m *Message) { m.Topic = strings.Repeat("t", 127) }, 0, ""},
		{"topic of 128", func(m *Message) { m.Topic = strings.Repeat("t", 128) }, CodeIllegalTopic, "128 characters; the limit is 127"},
		{"no topic", func(m *Message) { m.Topic = "" }, CodeIllegalTopic, "empty"},
		{"topic with a space", func(m *Message) { m.Topic = "a b" }, CodeIllegalTopic, `' ' at byte 1`},
		{"dead letter topic", func(m *Message) { m.Topic = "%DLQ%g" }, 0, ""},
		{"a system topic", func(m *Message) { m.Topic = "TBW102" }, CodeIllegalTopic, "system topic of RocketMQ"},
		{"begins like a system topic", func(m *Message) { m.Topic = "rmq_sys_x" }, CodeIllegalTopic, "system topics of RocketMQ"},
		{"no body", func(m *Message) { m.Body = nil }, CodeMessageBodyEmpty, "empty"},
		{"body of 4 MiB", func(m *Message) { m.Body = make([]byte, 4<<20) }, 0, ""},
		{"body above 4 MiB", func(m *Message) { m.Body = make([]byte, 4<<20+1) }, CodeMessageBodyTooLarge, "4194305 bytes; the limit is 4194304"},
		{"blank ID", func(m *Message) { m.ID = " " }, CodeIllegalMessageID, "blank"},
		{"tag", func(m *Message) { m.Tag = "a b" }, 0, ""},
		{"tag with |", func(m *Message) { m.Tag = "a|b" }, CodeIllegalMessageTag, "a|b"},
		{"blank tag", func(m *Message) { m.Tag = "\t" }, CodeIllegalMessageTag, "tag"},
		{"blank key", func(m *Message) { m.Keys = []string{"a", ""} }, CodeIllegalMessageKey, "key"},
		{"group of 63", func(m *Message) { m.MessageGroup = strings.Repeat("g", 63) }, 0, ""},
		{"group of 64", func(m *Message) { m.MessageGroup = strings.Repeat("g", 64) }, CodeIllegalMessageGroup, "64 bytes; the limit is 63"},
		{"blank group", func(m *Message) { m.MessageGroup = " " }, CodeIllegalMessageGroup, "blank"},
		{"group and time", func(m *Message) { m.MessageGroup, m.DeliverAt = "g", time.Unix(1, 0) }, CodeMessagePropertyConflict, `"g"`},
		{"128 properties", func(m *Message) { m.Properties = properties(128, 1) }, 0, ""},
		{"129 properties", func(m *Message) { m.Properties = properties(129, 1) }, CodeMessagePropertiesTooLarge, "129 properties; the limit is 128"},
		{"16 KiB", func(m *Message) { m.Properties = properties(16, 1020) }, 0, ""},
		{"above 16 KiB, with the tag", func(m *Message) { m.Properties, m.Tag = properties(16, 1020), "t" }, CodeMessagePropertiesTooLarge, "16385 bytes; the limit is 16384"},
		{"reserved property", func(m *Message) { m.Properties = map[string]string{"UNIQ_KEY": ""} }, CodeIllegalMessagePropertyKey, "UNIQ_KEY"},
		{"dead letter property", func(m *Message) { m.Properties = map[string]string{PropertyDeadLetterReason: ""} }, CodeIllegalMessagePropertyKey, "DLQ_REASON"},
		{"property with a line break", func(m *Message) { m.Properties = map[string]string{"a\nb": ""} }, CodeIllegalMessagePropertyKey, `a\nb`},
		// What is not UTF-8 cannot travel: refused here, it is not taken for a broken connection
		// later.
		{"ID not UTF-8", func(m *Message) { m.ID = "a\xff" }, CodeIllegalMessageID, "UTF-8"},
		{"tag not UTF-8", func(m *Message) { m.Tag = "\xff" }, CodeIllegalMessageTag, "UTF-8"},
		{"key not UTF-8", func(m *Message) { m.Keys = []string{"\xff"} }, CodeIllegalMessageKey, "UTF-8"},
		{"group not UTF-8", func(m *Message) { m.MessageGroup = "\xff" }, CodeIllegalMessageGroup, "UTF-8"},
		{"trace context not UTF-8", func(m *Message) { m.TraceContext = "\xff" }, CodeBadRequest, "trace context"},
		{"property not UTF-8", func(m *Message) { m.Properties = map[string]string{"\xff": ""} }, CodeIllegalMessagePropertyKey, "UTF-8"},
		{"property value not UTF-8", func(m *Message) { m.Properties = map[string]string{"k": "\xff"} }, CodeBadRequest, `"k"`},
		{"replacement character", func(m *Message) { m.Tag = "\uFFFD" }, 0, ""},
	} {
		m := &Message{Topic: "orders", Body: []byte("x")}
		c.change(m)
		err := m.Validate(0)
		e, _ := errors.AsType[*Error](err)
		if c.code == 0 && err != nil || c.code != 0 && (e == nil || e.Code != c.code || !strings.Contains(e.Error(), c.says)) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.code, c.says)
		}
	}
	if err := (&Message{Topic: "t", Body: make([]byte, 11)}).Validate(10); err == nil {
		t.Error("a limit of 10 takes 11 bytes")
	}
	for name, ok := range map[string]bool{"g": true, "": false, strings.Repeat("g", 120): true, strings.Repeat("g", 121): false, "CID_RMQ_SYS_x": false, "ä": false} {
		if err := ValidateGroup(name); (err == nil) != ok {
			t.Errorf("group %q: %v", name, err)
		}
	}
}

func TestMessageIDsAreUnique(t *testing.T) {
	form := regexp.MustCompile(`^01[0-9A-F]{32}$`)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				id := NewMessageID()
				mu.Lock()
				if seen[id] || !form.MatchString(id) {
					t.Errorf("%s came twice, or is not of RocketMQ's form", id)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// The digits are those of RocketMQ's docs/message_id.md: version, host, process, seconds since
// 2021-01-01 and a sequence number.
func TestMessageIDHasTheDigitsOfItsParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where the time is 2000-01-01 at first
		time.Sleep(time.Until(time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)))
		for range 300 { // all values of a byte
			id := NewMessageID()
			want := fmt.Sprintf("01%X%08X%08X", idHost, 2152*24*3600, idSequence.Load())
			if id != want {
				t.Fatalf("the ID is %s, want %s", id, want)
			}
		}
	})
}

func TestCloneSharesOnlyTheBody(t *testing.T) {
	m := &Message{Keys: []string{"a"}, Properties: map[string]string{"k": "v"}, Body: []byte("x")}
	c := m.Clone()
	c.Keys[0], c.Properties["k"] = "b", "w"
	if m.Keys[0] != "a" || m.Properties["k"] != "v" {
		t.Errorf("changing the copy changed %+v", m)
	}
	if e := (&Message{}).Clone(); e.Keys != nil || e.Properties != nil {
		t.Errorf("the copy of nothing is %+v", e)
	}
}

func TestDeadLetterOrigin(t *testing.T) {
	if _, ok := (&Message{Properties: map[string]string{"k": "v"}}).DeadLetter(); ok {
		t.Error("every message is a dead letter")
	}
	m := &Message{Properties: map[string]string{
		PropertyDeadLetterTopic: "t", PropertyDeadLetterMessageID: "id", PropertyDeadLetterQueue: "3", PropertyDeadLetterOffset: "1234567890123",
		PropertyDeadLetterGroup: "g", PropertyDeadLetterAttempts: "odd", PropertyDeadLetterReason: "r",
	}}
	before := maps.Clone(m.Properties)
	want := DeadLetter{Topic: "t", MessageID: "id", Queue: 3, Offset: 1234567890123, Group: "g", Attempts: 0, Reason: "r"}
	if d, ok := m.DeadLetter(); !ok || d != want || !maps.Equal(before, m.Properties) {
		t.Errorf("%+v, %v; want %+v", d, ok, want)
	}
}

func FuzzValidate(f *testing.F) {
	f.Add("topic", "tag", "key", "group", "property")
	f.Add("%DLQ%g", "a|b", "", "\x00", "UNIQ_KEY")
	// Invariants: it never panics; what it refuses has a code that matches ErrInvalid.
	f.Fuzz(func(t *testing.T, topic, tag, key, group, property string) {
		m := &Message{Topic: topic, Tag: tag, Keys: []string{key}, MessageGroup: group, Properties: map[string]string{property: ""}, Body: []byte("x")}
		if err := m.Validate(0); err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%v is not ErrInvalid", err)
		}
	})
}
