package conn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A load balancer that leads the requests of one connection to different servers
// gets no batches.
func TestMixedAnnouncementsEndBatches(t *testing.T) {
	c := &Connection{}
	ours := parseFeatures([]string{"batch, suspend, topics, heartbeats, queues"})
	c.announce(ours)
	f := *c.Features.Load()
	assert.That(t, f == ours && f.Batch && f.Topics && f.Heartbeats && f.Queues, "%+v of %+v", f, ours)
	c.announce(Features{})
	c.announce(ours)
	want := Features{Capabilities: transport.Capabilities{Suspend: true}}
	assert.Equal(t, "after a response without features", *c.Features.Load(), want)
}

// If gRPC opens two connections at the same time, it may drop the newer one.
func TestConnectionInUse(t *testing.T) {
	l := new(Link)
	first, second := &Connection{number: 1}, &Connection{number: 2}
	l.Saw(first)
	l.Saw(second)
	first.announce(Features{})
	l.Saw(first)
	assert.Equal(t, "the connection that responds is not the one in use", l.current.Load(), first)
	second.announce(Features{})
	l.Saw(second)
	l.Saw(first) // a late response
	assert.Equal(t, "an old connection replaced the one in use", l.current.Load(), second)
}

// At most half of the servers are excluded.
func TestExcluded(t *testing.T) {
	for _, tt := range []struct {
		trips []int64
		want  []bool
	}{
		{[]int64{5}, []bool{false}},
		{[]int64{0, 0}, []bool{false, false}},
		{[]int64{0, 7}, []bool{false, true}},
		{[]int64{9, 7}, []bool{false, true}}, // both failed: the first stays out
		{[]int64{9, 7, 8}, []bool{false, true, false}},
		{[]int64{4, 3, 2, 1}, []bool{false, false, true, true}},
		{[]int64{0, 3, 0, 1}, []bool{false, true, false, true}},
		{[]int64{0, 0, 1, 0}, []bool{false, false, true, false}},
	} {
		got := excluded(tt.trips)
		assert.That(t, slices.Equal(got, tt.want), "%v: %v, want %v", tt.trips, got, tt.want)
	}
}

func TestAuthorization(t *testing.T) {
	// printf 20250102T030405Z | openssl dgst -sha1 -hmac secret
	const want = "MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, Signature=F2AAF211D4F8038FA2EE86F40F3E56019780D7FA"
	got := authorization("ak", "secret", "20250102T030405Z")
	assert.That(t, got == want, "%s\nwant %s", got, want)
}

func TestHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewSigner("ak", "secret")
		md, _ := metadata.FromOutgoingContext(h.Outgoing(metadata.AppendToOutgoingContext(t.Context(), "mine", "kept"), NewIdentity("id", "ns", "st"), "more", "x"))
		for k, want := range map[string]string{
			"x-mq-client-id": "id", "x-mq-language": "GO", "x-mq-client-version": ClientVersion, "x-mq-protocol": "v2",
			"x-mq-namespace": "ns", "x-mq-session-token": "st", "x-mq-date-time": "20000101T000000Z", "more": "x", "mine": "kept",
			"authorization": authorization(h.access, h.secret, "20000101T000000Z"),
		} {
			got := md.Get(k)
			assert.That(t, len(got) == 1 && got[0] == want, "%s: %q, want %q", k, got, want)
		}
		first := md.Get("x-mq-request-id")[0]
		time.Sleep(time.Second)
		md, _ = metadata.FromOutgoingContext(NewSigner("", "").Outgoing(t.Context(), NewIdentity("id", "", "")))
		for _, k := range []string{"x-mq-namespace", "x-mq-session-token", "authorization"} {
			got := md.Get(k)
			assert.That(t, got == nil, "%s: %q, want none", k, got)
		}
		assert.That(t, md.Get("x-mq-request-id")[0] != first && md.Get("x-mq-date-time")[0] == "20000101T000001Z",
			"second request: %v", md)
	})
}

func TestVerdict(t *testing.T) {
	answered := func(c tidegate.Code) *tidegate.Error { return &tidegate.Error{Code: c} }
	errGone := errors.New("the caller has gone")
	lost := &tidegate.Error{Err: tidegate.ErrUnavailable}
	share := fmt.Errorf("the attempt's share: %w", tidegate.ErrUnavailable)
	for name, tt := range map[string]struct {
		err   *tidegate.Error
		cause error
		took  time.Duration
		want  Verdict
	}{
		"accepted":                  {want: Healthy},
		"throttled":                 {err: answered(tidegate.CodeTooManyRequests), want: Healthy},
		"broken connection":         {err: lost, want: failing},
		"attempt's share over":      {err: lost, cause: share, took: time.Millisecond, want: failing},
		"internal error":            {err: answered(tidegate.CodeInternalServerError), want: failing},
		"proxy timeout":             {err: answered(protocol.CodeProxyTimeout), want: failing},
		"wrong message":             {err: answered(tidegate.CodeMessageBodyTooLarge), want: Nothing},
		"wrong keys":                {err: answered(tidegate.CodeUnauthorized), want: Nothing},
		"no topic":                  {err: answered(tidegate.CodeTopicNotFound), want: Nothing},
		"not implemented":           {err: answered(tidegate.CodeNotImplemented), want: Nothing},
		"lane changed":              {err: &tidegate.Error{Err: transport.ErrLaneChanged}, want: Nothing},
		"closed":                    {err: &tidegate.Error{Err: tidegate.ErrClosed}, want: Nothing},
		"cancelled":                 {err: &tidegate.Error{Err: context.Canceled}, cause: context.Canceled, took: time.Hour, want: Nothing},
		"cancelled with a reason":   {err: &tidegate.Error{Err: errGone}, cause: errGone, took: time.Hour, want: Nothing},
		"short deadline":            {err: &tidegate.Error{Err: context.DeadlineExceeded}, cause: context.DeadlineExceeded, took: patience - 1, want: Nothing},
		"deadline after some while": {err: &tidegate.Error{Err: context.DeadlineExceeded}, cause: context.DeadlineExceeded, took: patience, want: failing},
	} {
		got := VerdictOf(tt.err, tt.cause, tt.took)
		assert.That(t, got == tt.want, "%s: %d, want %d", name, got, tt.want)
	}
}
