package session

import (
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A Profile has the settings that a client sent. It is not changed. There is one for each client,
// so the settings stay encoded: decoded they are ten times as large, and they are needed only to be
// sent again.
type Profile struct {
	clientType rmqpb.ClientType
	Language   string // x-mq-language
	Version    string // x-mq-client-version
	Packed     bool   // it announced wire.FeaturePacked
	Group      string // of a consumer
	timeout    time.Duration
	settings   []byte // a rmqpb.Settings
}

// IsPush reports whether the client takes messages to handlers, so that a
// message that comes back waits by the group's ladder.
func (p *Profile) IsPush() bool {
	return p != nil && p.clientType == rmqpb.ClientType_PUSH_CONSUMER
}

// kind returns the name of the kind of the client.
func (p *Profile) kind() string { return strings.ToLower(p.clientType.String()) }

// Settings returns the client's settings, or nil if it sent none. It fails only if they were not
// encoded by Marshal, which does not happen.
func (p *Profile) Settings() (*rmqpb.Settings, error) {
	if p == nil {
		return nil, nil
	}
	out := &rmqpb.Settings{}
	if err := proto.Unmarshal(p.settings, out); err != nil {
		return nil, fmt.Errorf("read the client's settings: %w", err)
	}
	return out, nil
}

// RequestTimeout returns the client's timeout of a request, or 3 s if its settings have none.
func (p *Profile) RequestTimeout() time.Duration {
	if p != nil && p.timeout > 0 {
		return p.timeout
	}
	return 3 * time.Second
}

// Serves returns nil if the broker serves clients of a type, and otherwise an error with
// NOT_IMPLEMENTED. Some official clients leave the type unset.
func Serves(t rmqpb.ClientType) error {
	why := "the broker does not know; it serves PRODUCER, PUSH_CONSUMER and SIMPLE_CONSUMER"
	switch t {
	case rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED, rmqpb.ClientType_PRODUCER, rmqpb.ClientType_PUSH_CONSUMER, rmqpb.ClientType_SIMPLE_CONSUMER:
		return nil
	case rmqpb.ClientType_PULL_CONSUMER:
		why = "the broker does not serve, because it stores the progress of consumer groups itself; use a PUSH_CONSUMER or a SIMPLE_CONSUMER"
	case rmqpb.ClientType_LITE_PUSH_CONSUMER, rmqpb.ClientType_LITE_SIMPLE_CONSUMER:
		why = "the broker does not serve, because it has no lite topics; use a PUSH_CONSUMER or a SIMPLE_CONSUMER"
	}
	return refusal.New(tidegate.CodeNotImplemented, "client_type", fmt.Sprintf("client_type is %v, which %s", t, why))
}

// ProfileOf checks a client's settings, whose type Serves accepts. Its error ends the stream, as
// RocketMQ's proxy does.
func ProfileOf(in *rmqpb.Settings, language, version string, packed bool) (*Profile, error) {
	p := &Profile{clientType: in.GetClientType(), Language: cut(language), Version: cut(version), Packed: packed}
	bad := func(format string, args ...any) (*Profile, error) {
		return nil, refusal.New(tidegate.CodeBadRequest, "settings", fmt.Sprintf("settings: "+format, args...))
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
		p.Group = pubSub.Subscription.GetGroup().GetName()
		if err := tidegate.ValidateGroup(p.Group); err != nil {
			return nil, err
		}
		for _, e := range pubSub.Subscription.GetSubscriptions() {
			topics = append(topics, e.GetTopic())
		}
	default:
		return bad("pub_sub is empty; set publishing or subscription")
	}
	for _, topic := range topics {
		if err := tidegate.ValidateTopic(topic.GetName()); err != nil {
			return nil, err
		}
		if err := requests.CheckNamespace(topic); err != nil {
			return nil, err
		}
	}
	p.timeout = in.GetRequestTimeout().AsDuration()
	var err error
	if p.settings, err = proto.Marshal(in); err != nil {
		return bad("%s", err)
	}
	return p, nil
}

// digestSeed and digest identify the settings that the server sent to a client before.
var digestSeed = maphash.MakeSeed()

func digest(s *rmqpb.Settings) uint64 {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(s) // it fails only on text that is not UTF-8, which did not arrive
	return maphash.Bytes(digestSeed, b)
}
