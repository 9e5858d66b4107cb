package consumer

import (
	"context"
	"fmt"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/policies"
	"github.com/tidegate/tidegate/consumer/policy"
)

// EffectivePolicy returns the retry policy in effect for the message, with the source of each
// value: a policy of PushOptions.Policies, Subscription.Retry, the server's settings, or the
// default. Only Topic, Tag and Properties of m count. An empty Topic means Subscription.Topic. The
// message need not exist.
//
// EffectivePolicy requests the server's settings, and blocks until there is a response or ctx ends.
// If it cannot read the settings, it returns the error and the values in effect without them. The
// server's settings include address settings of a tidegate broker. Their redelivery delays also
// override the delays of a policy; EffectivePolicy does not report this.
//
//	e, err := c.EffectivePolicy(ctx, &tidegate.Message{Tag: "invoice"})
//	fmt.Println(e)
//	fmt.Println(e.Preview())
func (p *Push) EffectivePolicy(ctx context.Context, m *tidegate.Message) (policy.Effective, error) {
	asked := tidegate.Message{Topic: m.Topic, Tag: m.Tag, Properties: m.Properties}
	if asked.Topic == "" {
		asked.Topic = p.sub.Topic
	}
	b := policies.Base{Retry: p.sub.Retry, Capabilities: p.transport.Capabilities("")}
	err := tidegate.ValidateTopic(asked.Topic)
	if err == nil {
		b.Server, err = p.transport.ConsumerSettings(ctx, p.sub.Group, asked.Topic)
	}
	if err != nil {
		err = fmt.Errorf("consumer: effective policy of %q: %w", asked.Topic, err)
	}
	return p.policies.Effective(&asked, b), err
}
