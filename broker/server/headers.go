package server

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/access"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

const (
	headerClientID      = "x-mq-client-id"
	headerLanguage      = "x-mq-language"
	headerClientVersion = "x-mq-client-version"

	// maxClientID bounds what is remembered of each client, in bytes.
	maxClientID = 255

	// maxReason bounds the reason of a dead letter, in bytes.
	maxReason = 1 << 10
)

// clientID returns the client's ID, which every request must carry. With keys,
// an ID is one of its key: nobody can speak for a client of another key. who is nil
// without keys.
func clientID(ctx context.Context, who *access.Identity) (string, error) {
	id := header(ctx, headerClientID)
	switch {
	case strings.TrimSpace(id) == "":
		return "", refusal.New(tidegate.CodeClientIDRequired, headerClientID, "the header "+headerClientID+" is missing or blank")
	case len(id) > maxClientID:
		return "", refusal.New(tidegate.CodeClientIDRequired, headerClientID,
			fmt.Sprintf("the header %s has %d bytes, at most %d are allowed", headerClientID, len(id), maxClientID))
	}
	return scoped(who, id), nil
}

// scoped puts the key before a client's ID.
func scoped(who *access.Identity, id string) string {
	if who == nil {
		return id
	}
	return who.String() + "/" + id
}

// header returns the first value of a request header, or "".
func header(ctx context.Context, name string) string {
	if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// reason returns why the client gave a message up, and whether it said so.
// A text that is not percent-encoded as it should be is taken as it is.
func reason(ctx context.Context) (string, bool) {
	v := metadata.ValueFromIncomingContext(ctx, headerReason)
	if len(v) == 0 {
		return "", false
	}
	text, err := url.PathUnescape(v[0])
	if err != nil {
		text = v[0]
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return text, true
}

// before503 reports whether a client's version is below 5.0.3, which is when
// clients learnt ILLEGAL_POLLING_TIME. Versions that cannot be read are new.
func before503(version string) bool {
	v, ok := strings.CutPrefix(version, "5.0.")
	if !ok || v == "" {
		return false
	}
	return v[0] >= '0' && v[0] <= '2' && (len(v) == 1 || v[1] < '0' || v[1] > '9')
}
