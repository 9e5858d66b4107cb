package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

// reconsumer is a server with retry topics.
type reconsumer struct {
	*server
	err      error // of the requests, after they took effect if lost
	lost     bool
	verdicts []transport.Verdict
}

func (r *reconsumer) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	if v.Kind != transport.RetryTopic && v.Kind != transport.NegativeAck {
		return r.server.Settle(ctx, d, v)
	}
	r.mu.Lock()
	r.verdicts = append(r.verdicts, v)
	err := r.err
	if r.lost {
		r.err = nil
	}
	r.mu.Unlock()
	if err != nil && !r.lost {
		return transport.RetryResult{}, err
	}
	if serr := r.settle(ctx, d, nil, func(e *entry) { e.done = true; r.end(e, e.due) }); serr != nil {
		return transport.RetryResult{}, serr
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: time.Minute}, err
}

// On a server without retry topics, such as a RocketMQ, the message is retried in its own topic
// after the delay that the handler asked for, and the outcome has a typed error.
func TestReconsumeOnAPlainServer(t *testing.T) {
	away := errors.New("the database is away")
	for name, tt := range map[string]struct {
		err     error
		attempt int // that fails with it
		want    time.Duration
	}{
		"a delay":                        {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: 7 * time.Second}, away), 1, 7 * time.Second},
		"more than a server takes":       {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: 100 * time.Hour}, away), 1, 12 * time.Hour},
		"a level":                        {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 3}, away), 1, 10 * time.Second},
		"a level above the last":         {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 99}, away), 1, 2 * time.Hour},
		"the next level":                 {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, away), 1, time.Second},
		"the next level, second attempt": {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, away), 2, 5 * time.Second},
		"negative":                       {consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck}, away), 1, time.Minute},
		"negative, with a delay":         {consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck, Delay: 3 * time.Second}, away), 1, 3 * time.Second},
		"wrapped":                        {fmt.Errorf("pay: %w", consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: 7 * time.Second}, away)), 1, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.fill(1)
				var seen outcomes
				stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
					if d.Attempt == tt.attempt {
						return tt.err
					}
					return consumer.RetryIn(time.Second, nil)
				}, consumer.PushOptions{OnDelivery: seen.add})
				time.Sleep(10 * time.Second)
				stop()
				o := seen.all()[tt.attempt-1]
				e, _ := errors.AsType[*tidegate.Error](o.SettleErr)
				if o.Disposition != consumer.Retried || o.Delay != tt.want || !errors.Is(o.Err, away) || e == nil || e.Code != tidegate.CodeNotImplemented {
					t.Errorf("outcome %+v, want a retry after %v", o, tt.want)
				}
				if plain := seen.all()[len(seen.all())-1]; tt.want < 10*time.Second && plain.SettleErr != nil {
					t.Errorf("an ordinary retry: %+v", plain)
				}
			})
		})
	}
}

func TestReconsumeRequests(t *testing.T) {
	refused := &tidegate.Error{Op: "Reconsume", Code: tidegate.CodeBadRequest, Message: "the group has no retry topics"}
	lost := errors.New("the response was lost")
	for name, tt := range map[string]struct {
		fail        error
		err         error // of the server
		lost        bool
		verdict     transport.Verdict
		disposition consumer.Disposition
		delay       time.Duration
		is          error // the match of SettleErr
	}{
		"delay":    {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, nil), nil, false, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, consumer.Reconsumed, time.Minute, nil},
		"level":    {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 4}, nil), nil, false, transport.Verdict{Kind: transport.RetryTopic, Level: 4}, consumer.Reconsumed, time.Minute, nil},
		"next":     {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, nil), nil, false, transport.Verdict{Kind: transport.RetryTopic}, consumer.Reconsumed, time.Minute, nil},
		"negative": {consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck, Delay: time.Hour}, nil), nil, false, transport.Verdict{Kind: transport.NegativeAck, Delay: time.Hour}, consumer.Retried, time.Minute, nil},
		"refused":  {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, nil), refused, false, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, consumer.Retried, time.Hour, refused},
		"lost":     {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, nil), lost, true, transport.Verdict{Kind: transport.RetryTopic}, consumer.PerhapsSettled, 0, verdict.ErrPerhaps},
		// A dead letter is the stronger wish.
		"dead letter": {errors.Join(consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, nil), consumer.DeadLetterNow(nil)), nil, false, transport.Verdict{Kind: transport.RetryTopic}, consumer.DeadLettered, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &reconsumer{server: newServer(t), err: tt.err, lost: tt.lost}
				s.caps = ours
				s.caps.Verdicts |= transport.RetryTopic | transport.NegativeAck
				s.fill(1)
				var seen outcomes
				stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return tt.fail }, consumer.PushOptions{OnDelivery: seen.add})
				time.Sleep(time.Minute)
				stop()
				list := seen.all()
				if len(list) != 1 || list[0].Disposition != tt.disposition || list[0].Delay != tt.delay || !errors.Is(list[0].SettleErr, tt.is) {
					t.Errorf("outcomes %+v, want %v after %v, %v", list, tt.disposition, tt.delay, tt.is)
				}
				for i := range s.verdicts {
					s.verdicts[i].Reason = ""
				}
				if tt.disposition != consumer.DeadLettered && (len(s.verdicts) == 0 || s.verdicts[0] != tt.verdict) {
					t.Errorf("verdicts %+v, want %+v", s.verdicts, tt.verdict)
				}
			})
		})
	}
}

// A simple consumer's transport that cannot do it is not asked.
func TestSimpleReconsumeNeedsTheTransport(t *testing.T) {
	s, err := consumer.NewSimple(newServer(t), consumer.Subscription{Group: "billing", Topic: "orders"}, consumer.SimpleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Settle(t.Context(), &tidegate.Delivery{}, transport.Verdict{Kind: transport.RetryTopic})
	if e, _ := errors.AsType[*tidegate.Error](err); e == nil || e.Code != tidegate.CodeNotImplemented {
		t.Error(err)
	}
}
