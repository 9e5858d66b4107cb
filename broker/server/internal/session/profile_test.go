package session

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Settings name topics in namespaces of a length that can be repeated.
func TestSettingsAreBounded(t *testing.T) {
	namespace := subscriber("t")
	namespace.GetSubscription().Subscriptions[0].Topic.ResourceNamespace = strings.Repeat("n", 256)
	for name, c := range map[string]struct {
		in   *rmqpb.Settings
		want string // empty: they are taken
	}{
		"2000 subscribed":  {subscriber(topicNames(2000)...), ""},
		"a long namespace": {namespace, "255"},
	} {
		_, err := ProfileOf(c.in, "GO", "5.1.4", false)
		if c.want == "" && err != nil || c.want != "" && (refusal.CodeOf(err) != 40000 || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// subscriber returns the settings of a push consumer of these topics.
func subscriber(topics ...string) *rmqpb.Settings {
	sub := &rmqpb.Subscription{Group: &rmqpb.Resource{Name: "g"}}
	for _, t := range topics {
		sub.Subscriptions = append(sub.Subscriptions, &rmqpb.SubscriptionEntry{Topic: &rmqpb.Resource{Name: t}})
	}
	return &rmqpb.Settings{ClientType: rmqpb.ClientType_PUSH_CONSUMER.Enum(), PubSub: &rmqpb.Settings_Subscription{Subscription: sub}}
}

// producer returns the settings of a producer for these topics.
func producer(topics ...string) *rmqpb.Settings {
	pub := &rmqpb.Publishing{}
	for _, t := range topics {
		pub.Topics = append(pub.Topics, &rmqpb.Resource{Name: t})
	}
	return &rmqpb.Settings{ClientType: rmqpb.ClientType_PRODUCER.Enum(), PubSub: &rmqpb.Settings_Publishing{Publishing: pub}}
}

// topicNames returns n names of topics.
func topicNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint("t", i)
	}
	return out
}
