package main

import (
	"context"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"go.uber.org/zap"
)

// official is the Go client of Apache RocketMQ, with its default options apart from TLS. The
// environment variable rocketmq.client.logRoot names the directory of its log; it must be set
// before the process begins.
//
// Its Start makes one attempt, which a server that has just started can miss.
type official struct {
	producer rmq.Producer
	push     rmq.PushConsumer
}

// starts is the number of calls of Start of which one must succeed.
const starts = 5

func (o *official) start(_ context.Context, s spec, deliver func([]byte)) error {
	rmq.EnableSsl = false
	dial := rmq.NewRpcClient // without a log of each request, which costs the client CPU time
	rmq.NewRpcClient = func(target string, opts ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		return dial(target, append(opts, rmq.WithRpcClientConnOption(rmq.WithZapLogger(zap.NewNop())))...)
	}
	config := &rmq.Config{Endpoint: s.Endpoint, ConsumerGroup: s.Group, Credentials: &credentials.SessionCredentials{}}
	topics := []string{s.Topic}
	if s.PushTopic != "" && s.PushTopic != s.Topic {
		topics = append(topics, s.PushTopic)
	}
	var err error
	for range starts {
		if o.producer, err = rmq.NewProducer(config, rmq.WithTopics(topics...)); err != nil {
			return err
		}
		if err = o.producer.Start(); err == nil {
			break
		}
	}
	if err != nil || s.PushTopic == "" {
		return err
	}
	handle := func(m *rmq.MessageView) rmq.ConsumerResult {
		deliver(m.GetBody())
		return rmq.SUCCESS
	}
	o.push, err = rmq.NewPushConsumer(config,
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{s.PushTopic: rmq.SUB_ALL}),
		rmq.WithPushConsumptionThreadCount(int32(s.Handlers)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: handle}))
	return err
}

func (o *official) consume(context.Context) error { return o.push.Start() }

func (o *official) send(ctx context.Context, topic, group string, body []byte) error {
	m := &rmq.Message{Topic: topic, Body: body}
	if group != "" {
		m.SetMessageGroup(group)
	}
	_, err := o.producer.Send(ctx, m)
	return err
}
