package rocketmq

import (
	"context"
	"strconv"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

const (
	opReconsume = "Reconsume"

	// reconsumeKey is the header that turns a change of the invisible duration into the end of a
	// failed delivery as in Apache Pulsar; see reconsumeHeader.
	reconsumeKey = "x-tidegate-reconsume"
)

// Reconsume sends a change of the invisible duration to the delay, with a header of its own. It
// sends no request to a server that does not announce the feature, because such a server would only
// extend the lease.
func (c *Client) Reconsume(ctx context.Context, d *tidegate.Delivery, mode transport.ReconsumeMode) (transport.RetryResult, error) {
	r, err := c.settling(ctx, opReconsume, d, nil)
	if err != nil {
		return transport.RetryResult{}, err
	}
	if !r.ep.Capabilities().Reconsume {
		e := fail(opReconsume, d.Topic, tidegate.CodeNotImplemented, "the server supports neither retry topics nor negative acknowledgements; check Capabilities first")
		e.Endpoint = r.ep.Key
		return transport.RetryResult{}, e
	}
	if mode.Level != 0 && (mode.Delay != 0 || mode.Negative) {
		return transport.RetryResult{}, fail(opReconsume, d.Topic, tidegate.CodeBadRequest, "a level, and a delay or negative acknowledgement, exclude each other; give one of them")
	}
	r.headers = []string{reconsumeKey, reconsumeHeader(mode)}
	_, trailer, err := c.changeInvisible(ctx, r, d, mode.Delay, true)
	if err != nil {
		return transport.RetryResult{}, err
	}
	return retryResult(trailer.Get(retryKey)), nil
}

// reconsumeHeader returns the value of the header. The values "negative" and "delay" use the
// invisible duration; "level=3" and "next" do not.
func reconsumeHeader(mode transport.ReconsumeMode) string {
	switch {
	case mode.Negative:
		return "negative"
	case mode.Level != 0:
		return "level=" + strconv.Itoa(mode.Level)
	case mode.Delay != 0:
		return "delay"
	}
	return "next"
}
