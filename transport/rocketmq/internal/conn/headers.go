package conn

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate/internal/wire"
)

// ClientVersion is sent as x-mq-client-version: the version of RocketMQ's own
// clients that this one behaves like. Servers only look whether it is below
// 5.0.3.
const ClientVersion = "5.1.4"

// dateTimeLayout is the form of x-mq-date-time, the signed header.
const dateTimeLayout = "20060102T150405Z"

// An Identity is the part of the headers that is the same for every request
// made under one client ID.
type Identity []string

// NewIdentity returns the headers of a client ID. An empty namespace or session token adds none.
func NewIdentity(clientID, namespace, sessionToken string) Identity {
	id := Identity{
		wire.HeaderClientID, clientID,
		wire.HeaderLanguage, "GO",
		wire.HeaderClientVersion, ClientVersion,
		"x-mq-protocol", "v2",
	}
	if namespace != "" {
		id = append(id, "x-mq-namespace", namespace)
	}
	if sessionToken != "" {
		id = append(id, "x-mq-session-token", sessionToken)
	}
	return id
}

// A Signer adds headers to requests. Goroutines share it.
type Signer struct {
	access, secret string // the keys; empty for unsigned requests
	prefix         string // of request IDs
	requests       atomic.Uint64
	stamp          atomic.Pointer[stamp]
}

// A stamp is the date and its signature, which hold for one second.
type stamp struct {
	second        int64
	dateTime      string
	authorization string
}

// NewSigner returns a headerer that signs requests, unless the access key is empty.
func NewSigner(accessKey, secretKey string) *Signer {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return &Signer{access: accessKey, secret: secretKey, prefix: hex.EncodeToString(b[:]) + "-"}
}

// Outgoing returns ctx with the headers of one request.
func (h *Signer) Outgoing(ctx context.Context, id Identity, more ...string) context.Context {
	s := h.now()
	kv := make([]string, 0, len(id)+len(more)+6)
	kv = append(kv, id...)
	kv = append(kv, "x-mq-request-id", h.prefix+strconv.FormatUint(h.requests.Add(1), 36), wire.HeaderDateTime, s.dateTime)
	if s.authorization != "" {
		kv = append(kv, wire.HeaderAuthorization, s.authorization)
	}
	return metadata.AppendToOutgoingContext(ctx, append(kv, more...)...)
}

func (h *Signer) now() *stamp {
	now := time.Now()
	if s := h.stamp.Load(); s != nil && s.second == now.Unix() {
		return s
	}
	s := &stamp{second: now.Unix(), dateTime: now.UTC().Format(dateTimeLayout)}
	if h.access != "" {
		s.authorization = authorization(h.access, h.secret, s.dateTime)
	}
	h.stamp.Store(s)
	return s
}

// authorization returns the value of the header of that name: only the
// date-time is signed, which is all that RocketMQ 5 asks for.
func authorization(accessKey, secretKey, dateTime string) string {
	mac := hmac.New(sha1.New, []byte(secretKey))
	mac.Write([]byte(dateTime))
	return fmt.Sprintf("MQv2-HMAC-SHA1 Credential=%s, SignedHeaders=x-mq-date-time, Signature=%X", accessKey, mac.Sum(nil))
}
