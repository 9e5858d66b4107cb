package rocketmq

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
)

const (
	// parallelChecks bounds the concurrent calls of one check function. waitingChecks bounds the
	// waiting checks; the server repeats the checks above it later.
	parallelChecks = 16
	waitingChecks  = 256
)

// A checker is one call of ServeChecks.
type checker struct {
	topics []string
	asked  chan transport.TransactionCheck // of capacity waitingChecks
}

// ServeChecks implements transport.Transactor. It keeps a session with every server of the topics
// and follows changes of the routes. The servers send their checks in these sessions. A panic in
// check is logged and counts as ResolutionUnknown.
func (c *Client) ServeChecks(ctx context.Context, topics []string, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
	if len(topics) == 0 {
		return fail(opTelemetry, "", tidegate.CodeBadRequest, "no topic given; give the topics whose transactions need checks")
	}
	for _, name := range topics {
		if err := tidegate.ValidateTopic(name); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	k := &checker{topics: topics, asked: make(chan transport.TransactionCheck, waitingChecks)}
	c.mu.Lock()
	c.checkers = append(c.checkers, k)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.checkers = slices.DeleteFunc(c.checkers, func(x *checker) bool { return x == k })
	}()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.holdSessions(ctx, topics) })
	for range parallelChecks {
		wg.Go(func() {
			for {
				select {
				case q := <-k.asked:
					c.resolve(ctx, q, check)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	<-ctx.Done()
	if c.isClosed() {
		return closedError(opTelemetry, topics[0])
	}
	return nil
}

// resolve resolves one check. It sends the resolution also if ctx ends while check runs.
func (c *Client) resolve(ctx context.Context, q transport.TransactionCheck, check func(context.Context, transport.TransactionCheck) transport.Resolution) {
	log := c.opts.Logger.With("topic", q.Transaction.Topic, "message_id", q.Transaction.MessageID, "endpoint", q.Transaction.Endpoint)
	r := func() (r transport.Resolution) {
		defer func() {
			if v := recover(); v != nil {
				c.unresolved.log(log, slog.LevelError, "rocketmq: transaction check panicked; the server will repeat it", "panic", v, "stack", string(debug.Stack()))
			}
		}()
		return check(ctx, q)
	}()
	if r == transport.ResolutionUnknown {
		return
	}
	if err := c.endTransaction(context.WithoutCancel(ctx), q.Transaction, r, rmqpb.TransactionSource_SOURCE_SERVER_CHECK); err != nil {
		c.unresolved.log(log, slog.LevelWarn, "rocketmq: resolution not sent; the server will repeat the check", "resolution", r.String(), "error", err)
	}
}

// holdSessions keeps a producer's session with every server of the topics until ctx ends.
func (c *Client) holdSessions(ctx context.Context, topics []string) {
	held := map[*session]bool{}
	defer func() {
		for s := range held {
			s.release()
		}
	}()
	ticker := time.NewTicker(c.opts.RouteRefresh)
	defer ticker.Stop()
	for {
		wanted := map[*session]bool{}
		for _, name := range topics {
			_, rt, err := c.route(transport.AwaitConnection(ctx), opTelemetry, name)
			if err != nil {
				c.opts.Logger.Warn("rocketmq: serving transaction checks of a topic failed", "topic", name, "error", err)
				continue
			}
			for _, ep := range rt.Servers {
				s, since, err := c.session(opTelemetry, ep, role{}, name, nil)
				if err != nil {
					return // the client is closed
				}
				if wanted[s] = true; held[s] {
					s.release()
				}
				held[s] = true
				// A waiting caller makes the session reopen a lost stream soon.
				_, _ = s.await(ctx, since, opTelemetry, name)
			}
		}
		for s := range held {
			if !wanted[s] {
				delete(held, s)
				s.release()
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// asked passes a server's check to a checker of its topic.
func (c *Client) asked(ep *remote.Server, cmd *rmqpb.RecoverOrphanedTransactionCommand) error {
	pb := proto.CloneOf(cmd.GetMessage())
	if pb.GetSystemProperties() == nil {
		return errors.New("the message has no properties")
	}
	pb.SystemProperties.ReceiptHandle = new("none") // a check has no receipt handle, but DecodeMessage requires one
	d, err := wire.DecodeMessage(pb, c.opts.MaxReceiveSize)
	if err != nil {
		return err
	}
	q := transport.TransactionCheck{Message: &d.Message, Transaction: transport.Transaction{
		ID: cmd.GetTransactionId(), MessageID: d.ID, Topic: d.Topic, Endpoint: ep.Key,
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.checkers {
		if slices.Contains(k.topics, d.Topic) {
			select {
			case k.asked <- q:
				return nil
			default:
			}
		}
	}
	return errors.New("no checker serves the topic, or too many checks wait")
}
