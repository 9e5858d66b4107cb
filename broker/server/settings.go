package server

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/wire"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// receiveBatchSize is the most messages in one receive (RocketMQ: 32).
const receiveBatchSize = 32

// A profile is what a client said of itself in its settings. It is not changed.
// There is one for each client, so the settings are kept as they travel: decoded
// they are ten times as large, and they are needed only to be sent again.
type profile struct {
	clientType rmqpb.ClientType
	language   string // x-mq-language
	group      string // of a consumer
	timeout    time.Duration
	settings   []byte // a rmqpb.Settings
}

// push reports whether the client takes messages to handlers, so that a
// message that comes back waits by the group's ladder.
func (p *profile) push() bool {
	return p != nil && (p.clientType == rmqpb.ClientType_PUSH_CONSUMER || p.clientType == rmqpb.ClientType_LITE_PUSH_CONSUMER)
}

// decoded returns the client's settings, nil if it said nothing. It fails only
// if they did not come from Marshal, as they do.
func (p *profile) decoded() (*rmqpb.Settings, error) {
	if p == nil {
		return nil, nil
	}
	out := &rmqpb.Settings{}
	if err := proto.Unmarshal(p.settings, out); err != nil {
		return nil, fmt.Errorf("read the client's settings: %w", err)
	}
	return out, nil
}

// requestTimeout returns the client's time for a request, 3 s if it did not say.
func (p *profile) requestTimeout() time.Duration {
	if p != nil && p.timeout > 0 {
		return p.timeout
	}
	return 3 * time.Second
}

// profileOf checks a client's settings. Its error is a gRPC status, which ends
// the stream, as RocketMQ's proxy does.
func profileOf(in *rmqpb.Settings, language string) (*profile, error) {
	p := &profile{clientType: in.GetClientType(), language: language}
	bad := func(format string, args ...any) (*profile, error) {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("settings: "+format, args...))
	}
	var topics []*rmqpb.Resource
	switch pubSub := in.GetPubSub().(type) {
	case *rmqpb.Settings_Publishing:
		if p.clientType == rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED {
			p.clientType = rmqpb.ClientType_PRODUCER
		}
		if p.clientType != rmqpb.ClientType_PRODUCER {
			return bad("client_type is %v, but pub_sub is publishing", p.clientType)
		}
		topics = pubSub.Publishing.GetTopics()
	case *rmqpb.Settings_Subscription:
		if p.clientType == rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED {
			p.clientType = rmqpb.ClientType_SIMPLE_CONSUMER
		}
		if p.clientType == rmqpb.ClientType_PRODUCER {
			return bad("client_type is %v, but pub_sub is subscription", p.clientType)
		}
		p.group = pubSub.Subscription.GetGroup().GetName()
		if err := tidegate.ValidateGroup(p.group); err != nil {
			return bad("subscription.group: %s", err)
		}
		for _, e := range pubSub.Subscription.GetSubscriptions() {
			topics = append(topics, e.GetTopic())
		}
	default:
		return bad("there is no publishing or subscription data in them: set pub_sub")
	}
	for _, topic := range topics {
		if err := tidegate.ValidateTopic(topic.GetName()); err != nil {
			return bad("topics: %s", err)
		}
		if err := wire.CheckNamespace(topic); err != nil {
			return bad("topics: %s", err)
		}
	}
	p.timeout = in.GetRequestTimeout().AsDuration()
	var err error
	if p.settings, err = proto.Marshal(in); err != nil {
		return bad("%s", err)
	}
	return p, nil
}

// digestSeed and digest tell settings apart that a client was told before.
var digestSeed = maphash.MakeSeed()

func digest(s *rmqpb.Settings) uint64 {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(s) // it fails only on text that is not UTF-8, which did not arrive
	return maphash.Bytes(digestSeed, b)
}

// settings returns the client's settings merged with what the server wants of it.
func (s *Server) settings(ctx context.Context, p *profile) (*rmqpb.Settings, error) {
	out, err := p.decoded()
	if err != nil {
		return nil, err
	}
	out.Metric = &rmqpb.Metric{} // off
	if pub := out.GetPublishing(); pub != nil {
		out.BackoffPolicy = &rmqpb.RetryPolicy{
			MaxAttempts: int32(min(s.o.ProducerMaxAttempts, math.MaxInt32)),
			Strategy:    wire.Exponential(s.o.ProducerBackoff.Initial, s.o.ProducerBackoff.Max, s.o.ProducerBackoff.Multiplier),
		}
		pub.MaxBodySize = int32(min(s.maxBody, math.MaxInt32))
		pub.ValidateMessageType = true
		return out, nil
	}
	c, err := s.b.EnsureGroup(ctx, p.group)
	if err != nil {
		return nil, err
	}
	sub := out.GetSubscription()
	sub.Fifo = &c.FIFO
	sub.ReceiveBatchSize = proto.Int32(receiveBatchSize)
	sub.LongPollingTimeout = durationpb.New(s.o.MaxLongPolling)
	topics := make([]string, len(sub.GetSubscriptions()))
	for i, e := range sub.GetSubscriptions() {
		topics[i] = e.GetTopic().GetName()
	}
	out.BackoffPolicy = wire.RetryPolicy(s.b.RetryPolicy(c, topics...), p.language)
	return out, nil
}
