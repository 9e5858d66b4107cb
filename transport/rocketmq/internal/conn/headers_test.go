package conn

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate/internal/assert"
)

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
