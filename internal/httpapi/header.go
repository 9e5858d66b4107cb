package httpapi

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// dateTimeLayout is the format of the header x-mq-date-time, which the signature covers.
const dateTimeLayout = "20060102T150405Z"

func (c *Client) header(h http.Header, body bool) {
	h.Set("Accept", "application/json")
	h.Set("User-Agent", "tidegate")
	if body {
		h.Set("Content-Type", "application/json")
	}
	if id := c.options.ClientID; id != "" {
		h.Set("x-mq-client-id", id)
	}
}

// signed returns the request with credentials. Over TLS the credentials are the access key and its
// secret, which do not depend on the clock. In plain text they are RocketMQ's signature, which is
// computed for each attempt.
func (c *Client) signed(r *http.Request) *http.Request {
	if c.options.Credentials.AccessKey == "" {
		return r
	}
	r.Header = r.Header.Clone() // the caller's request stays as it is
	if c.base.Scheme == "https" {
		r.SetBasicAuth(c.options.Credentials.AccessKey, c.options.Credentials.SecretKey)
		return r
	}
	now := time.Now().UTC().Format(dateTimeLayout)
	mac := hmac.New(sha1.New, []byte(c.options.Credentials.SecretKey))
	mac.Write([]byte(now))
	r.Header.Set("x-mq-date-time", now)
	r.Header.Set("Authorization", fmt.Sprintf("MQv2-HMAC-SHA1 Credential=%s, SignedHeaders=x-mq-date-time, Signature=%X", c.options.Credentials.AccessKey, mac.Sum(nil)))
	return r
}

// isTLS reports whether an attempt failed in TLS, for example in the verification of the
// certificate. A retry cannot succeed.
func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	// net/http replaces a RecordHeaderError by ErrSchemeMismatch.
	return errors.Is(err, http.ErrSchemeMismatch)
}
