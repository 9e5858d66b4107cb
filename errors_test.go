package tidegate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/protocol"
)

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*Error{
		`SendMessage "orders" at h:1: 40402 TOPIC_NOT_FOUND: create it: EOF`: {
			Op: "SendMessage", Subject: "orders", Endpoint: "h:1", Code: CodeTopicNotFound, Message: "create it", Err: errors.New("EOF"),
		},
		`SendMessage: 530 TOO_MANY_REQUESTS`:            {Op: "SendMessage", Code: CodeTooManyRequests},
		`530 TOO_MANY_REQUESTS: the backlog is 10`:      {Code: CodeTooManyRequests, Message: "530 TOO_MANY_REQUESTS: the backlog is 10"},
		`530 TOO_MANY_REQUESTS: please wait`:            {Code: CodeTooManyRequests, Message: "please wait"},
		`"body": 41302 MESSAGE_BODY_EMPTY: it is empty`: {Subject: "body", Code: protocol.CodeMessageBodyEmpty, Message: "it is empty"},
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
		protocol.CodeConsumerGroupNotFound: "notfound", CodeMessageBodyTooLarge: "invalid", protocol.CodeMessagePropertiesTooLarge: "invalid",
		CodeUnauthorized: "unauthorized", CodeForbidden: "forbidden", CodeInternalServerError: "unavailable",
		protocol.CodeProxyTimeout: "unavailable", protocol.CodeRequestTimeout: "unavailable", CodeNotImplemented: "", protocol.CodeUnsupported: "", protocol.CodeOK: "", 0: "",
		protocol.CodeLiteTopicQuotaExceeded: "", protocol.CodeLiteSubscriptionQuotaExceeded: "",
		// Codes that RocketMQ does not have, by the range of the code.
		20077: "", 30077: "", 40077: "invalid", 40177: "unauthorized", 40277: "", 40377: "forbidden", 40477: "notfound", 40877: "unavailable",
		41377: "invalid", 42877: "", 42977: "throttled", 43177: "invalid", 45077: "", 50077: "unavailable", 50177: "", 50477: "unavailable",
		50577: "", 51177: "unavailable", 60077: "", 77: "", -77: "",
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
	for code, want := range map[Code]int{CodeForbidden: 40300, 42977: 530, protocol.CodeLiteTopicQuotaExceeded: 42901, 50077: 50077} {
		if got := (&Error{Code: code}).ReplyCode(); got != want {
			t.Errorf("reply code of %d is %d, want %d", code, got, want)
		}
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

func TestClassify(t *testing.T) {
	for code, want := range map[Code]Class{
		protocol.CodeOK: ClassOK, CodeTooManyRequests: ClassThrottled, protocol.CodeRequestTimeout: ClassTransient,
		CodeBadRequest: ClassPermanent, protocol.CodeIllegalTopic: ClassPermanent, CodeInvalidReceiptHandle: ClassPermanent,
		CodeUnauthorized: ClassPermanent, CodeForbidden: ClassPermanent, CodeTopicNotFound: ClassPermanent,
		CodeMessageBodyTooLarge: ClassPermanent, protocol.CodeMessagePropertiesTooLarge: ClassPermanent,
		protocol.CodeLiteTopicQuotaExceeded: ClassPermanent, protocol.CodeLiteSubscriptionQuotaExceeded: ClassPermanent,
		protocol.CodeInternalError: ClassTransient, CodeInternalServerError: ClassTransient, protocol.CodeProxyTimeout: ClassTransient,
		protocol.CodeMasterPersistenceTimeout: ClassTransient, protocol.CodeHANotAvailable: ClassTransient,
		CodeNotImplemented: ClassPermanent, protocol.CodeUnsupported: ClassPermanent, protocol.CodeFailedToConsumeMessage: ClassTransient,
		// Codes that RocketMQ does not have, by the range of the code, as in HTTP.
		20077: ClassOK, 20277: ClassOK, 40077: ClassPermanent, 40177: ClassPermanent, 40477: ClassPermanent, 40877: ClassTransient,
		42977: ClassThrottled, 45077: ClassPermanent, 50077: ClassTransient, 50177: ClassPermanent, 50577: ClassPermanent,
		51177: ClassTransient, 30077: ClassTransient, 60077: ClassTransient, 77: ClassTransient, -77: ClassTransient,
	} {
		if got := Classify(fmt.Errorf("around: %w", &Error{Code: code})); got != want {
			t.Errorf("%v is %v, want %v", code, got, want)
		}
	}
	for err, want := range map[error]Class{
		nil: ClassOK, errors.New("EOF"): ClassTransient, context.DeadlineExceeded: ClassTransient, context.Canceled: ClassCancelled, ErrClosed: ClassCancelled,
		ErrInvalid:                    ClassPermanent,
		&Error{Err: context.Canceled}: ClassCancelled, &Error{Err: errors.New("reset")}: ClassTransient,
		// The code of the server decides, even if other errors are wrapped.
		&Error{Code: CodeTooManyRequests, Err: context.Canceled}: ClassThrottled,
	} {
		if got := Classify(err); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}

// Each class has a name of its own. The tests of other packages find the classes by their names.
func TestClassesHaveNames(t *testing.T) {
	names := map[string]bool{"unknown": true}
	for c := range classes {
		if names[c.String()] {
			t.Errorf("class %d has no name of its own: %q", c, c)
		}
		names[c.String()] = true
	}
	if got := classes.String(); got != "unknown" {
		t.Errorf("the number after the last class is %q, want unknown", got)
	}
}

// A caller may send again while ErrUnavailable matches, so permanent errors must not match it. The
// errors of servers that are transient, and all throttles, match their sentinel errors.
func TestSentinelErrorsAgreeWithClasses(t *testing.T) {
	for code := Code(0); code <= 70000; code++ {
		err := &Error{Code: code}
		class, unavailable := Classify(err), errors.Is(err, ErrUnavailable)
		if unavailable && class != ClassTransient || !unavailable && class == ClassTransient && code >= 40000 && code < 60000 {
			t.Errorf("%v is %v, and matches ErrUnavailable: %v", code, class, unavailable)
		}
		if errors.Is(err, ErrThrottled) != (class == ClassThrottled) {
			t.Errorf("%v is %v, and matches ErrThrottled: %v", code, class, class != ClassThrottled)
		}
	}
}

func TestIsMessageFault(t *testing.T) {
	for code, want := range map[Code]bool{
		CodeMessageBodyTooLarge: true, protocol.CodeIllegalMessageTag: true, protocol.CodeMessagePropertyConflict: true,
		protocol.CodeMessagePropertiesTooLarge: true, protocol.CodeIllegalDeliveryTime: true,
		CodeTopicNotFound: false, CodeUnauthorized: false, CodeForbidden: false, protocol.CodeIllegalTopic: false,
		CodeIllegalAccessPoint: false, CodeTooManyRequests: false, protocol.CodeInternalError: false,
		CodeNotImplemented: false, protocol.CodeInvalidClientProperties: false, protocol.CodeIllegalLiteTopic: true,
		40077: true, 41377: true, 43177: true, 40177: false, 40477: false, 42977: false, 45077: false, 50177: false,
	} {
		if got := IsMessageFault(fmt.Errorf("around: %w", &Error{Code: code})); got != want {
			t.Errorf("%v: %v, want %v", code, got, want)
		}
	}
	for err, want := range map[error]bool{nil: false, ErrInvalid: true, errors.New("EOF"): false, context.Canceled: false} {
		if got := IsMessageFault(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
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
		protocol.PropertyDeadLetterTopic: "t", protocol.PropertyDeadLetterMessageID: "id", protocol.PropertyDeadLetterQueue: "3", protocol.PropertyDeadLetterOffset: "1234567890123",
		protocol.PropertyDeadLetterGroup: "g", protocol.PropertyDeadLetterAttempts: "odd", protocol.PropertyDeadLetterReason: "r",
	}}
	before := maps.Clone(m.Properties)
	want := DeadLetter{Topic: "t", MessageID: "id", Queue: 3, Offset: 1234567890123, Group: "g", Attempts: 0, Reason: "r"}
	if d, ok := m.DeadLetter(); !ok || d != want || !maps.Equal(before, m.Properties) {
		t.Errorf("%+v, %v; want %+v", d, ok, want)
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
		{"topic of 128", func(m *Message) { m.Topic = strings.Repeat("t", 128) }, protocol.CodeIllegalTopic, "128 characters; the limit is 127"},
		{"no topic", func(m *Message) { m.Topic = "" }, protocol.CodeIllegalTopic, "empty"},
		{"topic with a space", func(m *Message) { m.Topic = "a b" }, protocol.CodeIllegalTopic, `' ' at byte 1`},
		{"dead letter topic", func(m *Message) { m.Topic = "%DLQ%g" }, 0, ""},
		{"a system topic", func(m *Message) { m.Topic = "TBW102" }, protocol.CodeIllegalTopic, "system topic of RocketMQ"},
		{"begins like a system topic", func(m *Message) { m.Topic = "rmq_sys_x" }, protocol.CodeIllegalTopic, "system topics of RocketMQ"},
		{"no body", func(m *Message) { m.Body = nil }, protocol.CodeMessageBodyEmpty, "empty"},
		{"body of 4 MiB", func(m *Message) { m.Body = make([]byte, 4<<20) }, 0, ""},
		{"body above 4 MiB", func(m *Message) { m.Body = make([]byte, 4<<20+1) }, CodeMessageBodyTooLarge, "4194305 bytes; the limit is 4194304"},
		{"blank ID", func(m *Message) { m.ID = " " }, protocol.CodeIllegalMessageID, "blank"},
		{"ID of 255", func(m *Message) { m.ID = strings.Repeat("i", 255) }, 0, ""},
		{"ID of 256", func(m *Message) { m.ID = strings.Repeat("i", 256) }, protocol.CodeIllegalMessageID, "256 bytes; the limit is 255"},
		{"in 24 h", func(m *Message) { m.DeliverAt = time.Now().Add(24 * time.Hour) }, 0, ""},
		{"in the past", func(m *Message) { m.DeliverAt = time.Unix(1, 0) }, 0, ""},
		{"in more than 24 h", func(m *Message) { m.DeliverAt = time.Now().Add(24*time.Hour + time.Minute) }, protocol.CodeIllegalDeliveryTime, "24h0m0s"},
		{"trace of 4 KiB", func(m *Message) { m.TraceContext = strings.Repeat("t", 4096) }, 0, ""},
		{"trace of more", func(m *Message) { m.TraceContext = strings.Repeat("t", 4097) }, protocol.CodeMessagePropertiesTooLarge, "4097 bytes; the limit is 4096"},
		{"empty property", func(m *Message) { m.Properties = map[string]string{"color": ""} }, protocol.CodeIllegalMessagePropertyKey, `"color" is empty`},
		{"tag", func(m *Message) { m.Tag = "a b" }, 0, ""},
		{"tag with |", func(m *Message) { m.Tag = "a|b" }, protocol.CodeIllegalMessageTag, "a|b"},
		{"blank tag", func(m *Message) { m.Tag = "\t" }, protocol.CodeIllegalMessageTag, "tag"},
		{"blank key", func(m *Message) { m.Keys = []string{"a", ""} }, protocol.CodeIllegalMessageKey, "key"},
		{"group of 63", func(m *Message) { m.MessageGroup = strings.Repeat("g", 63) }, 0, ""},
		{"group of 64", func(m *Message) { m.MessageGroup = strings.Repeat("g", 64) }, protocol.CodeIllegalMessageGroup, "64 bytes; the limit is 63"},
		{"blank group", func(m *Message) { m.MessageGroup = " " }, protocol.CodeIllegalMessageGroup, "blank"},
		{"group and time", func(m *Message) { m.MessageGroup, m.DeliverAt = "g", time.Unix(1, 0) }, protocol.CodeMessagePropertyConflict, `"g"`},
		{"highest priority", func(m *Message) { m.Priority = math.MaxInt32 }, 0, ""},
		{"priority below 0", func(m *Message) { m.Priority = -1 }, CodeBadRequest, "-1; give 0 to 2147483647"},
		{"priority of 2^31", func(m *Message) { m.Priority = 1 << 31 }, CodeBadRequest, "2147483648"},
		{"priority and group", func(m *Message) { m.Priority, m.MessageGroup = 1, "g" }, protocol.CodeMessagePropertyConflict, "priority (1)"},
		{"priority and time", func(m *Message) { m.Priority, m.DeliverAt = 1, time.Unix(1, 0) }, protocol.CodeMessagePropertyConflict, "priority (1)"},
		{"128 properties", func(m *Message) { m.Properties = properties(128, 1) }, 0, ""},
		{"129 properties", func(m *Message) { m.Properties = properties(129, 1) }, protocol.CodeMessagePropertiesTooLarge, "129 properties; the limit is 128"},
		{"16 KiB", func(m *Message) { m.Properties = properties(16, 1020) }, 0, ""},
		{"above 16 KiB, with the tag", func(m *Message) { m.Properties, m.Tag = properties(16, 1020), "t" }, protocol.CodeMessagePropertiesTooLarge, "16385 bytes; the limit is 16384"},
		{"reserved property", func(m *Message) { m.Properties = map[string]string{"UNIQ_KEY": ""} }, protocol.CodeIllegalMessagePropertyKey, "UNIQ_KEY"},
		{"dead letter property", func(m *Message) { m.Properties = map[string]string{protocol.PropertyDeadLetterReason: ""} }, protocol.CodeIllegalMessagePropertyKey, "DLQ_REASON"},
		{"property with a line break", func(m *Message) { m.Properties = map[string]string{"a\nb": ""} }, protocol.CodeIllegalMessagePropertyKey, `a\nb`},
		// Texts that are not UTF-8 are rejected here, because gRPC would report them as a broken
		// connection.
		{"ID with a control character", func(m *Message) { m.ID = "a\x1b]0;x\a" }, protocol.CodeIllegalMessageID, `a\x1b]0;x\a`},
		{"ID with a control character of C1", func(m *Message) { m.ID = "\u009b1m" }, protocol.CodeIllegalMessageID, `\u009b1m`},
		{"ID not UTF-8", func(m *Message) { m.ID = "a\xff" }, protocol.CodeIllegalMessageID, "UTF-8"},
		{"tag not UTF-8", func(m *Message) { m.Tag = "\xff" }, protocol.CodeIllegalMessageTag, "UTF-8"},
		{"key not UTF-8", func(m *Message) { m.Keys = []string{"\xff"} }, protocol.CodeIllegalMessageKey, "UTF-8"},
		{"group not UTF-8", func(m *Message) { m.MessageGroup = "\xff" }, protocol.CodeIllegalMessageGroup, "UTF-8"},
		{"trace context not UTF-8", func(m *Message) { m.TraceContext = "\xff" }, CodeBadRequest, "trace context"},
		{"property not UTF-8", func(m *Message) { m.Properties = map[string]string{"\xff": ""} }, protocol.CodeIllegalMessagePropertyKey, "UTF-8"},
		{"property value not UTF-8", func(m *Message) { m.Properties = map[string]string{"k": "\xff"} }, CodeBadRequest, `"k"`},
		{"replacement character", func(m *Message) { m.Tag = "\uFFFD" }, 0, ""},
	} {
		m := &Message{Topic: "orders", Body: []byte("x")}
		c.change(m)
		err := m.Validate(0)
		e, _ := errors.AsType[*Error](err)
		if c.code == 0 && err != nil || c.code != 0 && (e == nil || e.Code != c.code || !errors.Is(err, ErrInvalid) || !strings.Contains(e.Error(), c.says)) {
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

func FuzzValidate(f *testing.F) {
	f.Add("topic", "tag", "key", "group", "property")
	f.Add("%DLQ%g", "a|b", "", "\x00", "UNIQ_KEY")
	// Invariants: Validate never panics, and each of its errors matches ErrInvalid.
	f.Fuzz(func(t *testing.T, topic, tag, key, group, property string) {
		m := &Message{Topic: topic, Tag: tag, Keys: []string{key}, MessageGroup: group, Properties: map[string]string{property: ""}, Body: []byte("x")}
		if err := m.Validate(0); err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%v is not ErrInvalid", err)
		}
	})
}
