package access

import (
	"encoding/hex"
	"errors"
	"strings"
	"time"
)

// Algorithm is RocketMQ 5's scheme of signing: HMAC-SHA1, by the secret, of
// the header x-mq-date-time as it is written.
const Algorithm = "MQv2-HMAC-SHA1"

const (
	dateTimeHeader = "x-mq-date-time"

	// maxHeaderLength is the maximum size of an authorization header, in bytes.
	maxHeaderLength = 1 << 10

	signatureLength = 20 // bytes of SHA-1
)

// A header is a parsed authorization header.
type header struct {
	key       string // empty: none
	signature [signatureLength]byte
}

// errMalformed has no part of the header: a secret may stand where it should not.
var errMalformed = errors.New("the authorization is not of the form " +
	Algorithm + " Credential=KEY, SignedHeaders=" + dateTimeHeader + ", Signature=HEX")

// parseHeader reads an authorization header. Clients write it in their own
// ways: the Go client puts a region and a service behind the key
// (KEY//Rocketmq), hexadecimal digits are upper or lower case.
func parseHeader(text string) (header, error) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(text), " ")
	if len(text) > maxHeaderLength || !ok || !strings.EqualFold(scheme, Algorithm) {
		return header{}, errMalformed
	}
	var h header
	var credential, signed, signature bool
	for part := range strings.SplitSeq(rest, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		var twice bool
		switch {
		case !ok:
			return header{}, errMalformed
		case strings.EqualFold(name, "Credential"):
			h.key, _, _ = strings.Cut(value, "/")
			twice, credential = credential, true
		case strings.EqualFold(name, "SignedHeaders"):
			// With more headers signed, this would be another signature.
			if !strings.EqualFold(value, dateTimeHeader) {
				return header{}, errMalformed
			}
			twice, signed = signed, true
		case strings.EqualFold(name, "Signature"):
			if hex.DecodedLen(len(value)) != signatureLength || len(value)%2 != 0 {
				return header{}, errMalformed
			}
			if _, err := hex.Decode(h.signature[:], []byte(value)); err != nil {
				return header{}, errMalformed
			}
			twice, signature = signature, true
		}
		if twice {
			return header{}, errMalformed
		}
	}
	if !credential || !signed || !signature {
		return header{}, errMalformed
	}
	return h, nil
}

// dateTimeLayout is how RocketMQ's clients write their time. Its Z does not
// mean UTC: only some of them convert to it.
const dateTimeLayout = "20060102T150405Z"

// clockSkew returns the distance between a time and now, in the zone with the shortest distance.
func clockSkew(text string, now time.Time, zones []*time.Location) (time.Duration, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil { // RocketMQ's Rust client sends its zone
		return now.Sub(at).Abs(), nil
	}
	nearest := time.Duration(-1)
	for _, z := range zones {
		at, err := time.ParseInLocation(dateTimeLayout, text, z)
		if err != nil {
			return 0, errors.New("the time is not of the form " + dateTimeLayout)
		}
		if d := now.Sub(at).Abs(); nearest < 0 || d < nearest {
			nearest = d
		}
	}
	return nearest, nil
}
