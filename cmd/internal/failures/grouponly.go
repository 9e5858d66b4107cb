package failures

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer/deadletter"
)

// groupOnly returns an error if --to-group-only does not fit the other flags or the server.
func groupOnly(c *call.Call, to string) error {
	server, err := c.Server()
	switch {
	case err != nil:
		return err
	case server.Kind == connection.AMQP:
		return command.Usagef(c.Command, "--to-group-only is for tidegate brokers and RocketMQ; leave the flag out, or give an address of this group alone with --to")
	case server.WithoutHTTP() && to == "":
		return command.Usagef(c.Command, "--to-group-only needs --to TOPIC on RocketMQ, whose dead letters do not name the topic that they were sent to; "+
			"the messages go through the retry topic of this group for TOPIC")
	case !server.WithoutHTTP() && to != "":
		return command.Usagef(c.Command, "--to-group-only sends each message to its own topic; give it or --to, not both")
	}
	return nil
}

// A receivers has the consumer groups that receive the messages of a redrive, if they are others
// than the group of the dead letters alone.
type receivers struct {
	Topics []string `json:"topics,omitempty"` // sorted; nil if they are not known, as are the groups
	Groups []string `json:"groups,omitempty"`

	advice string // how to send to the group of the dead letters alone
}

// most is the number of topics, and of letters, for which receivers are looked up.
const most = 100

// receiversOf returns the receivers of a redrive; nil if the group of the dead letters is known to
// be the only one. A failed request leaves the groups unknown: the redrive itself reports the
// fault.
func (s *selection) receiversOf(ctx context.Context, c *call.Call, o *deadletter.Options) *receivers {
	server, err := c.Server()
	if err != nil || o.ToGroupOnly {
		return nil
	}
	r := &receivers{advice: "a topic of group " + output.Safe(c.Args[0]) + " alone, given by --to, avoids it"}
	if o.To != "" {
		r.Topics = []string{o.To}
	}
	if server.WithoutHTTP() {
		if server.Kind != connection.AMQP && o.To != "" {
			r.advice = "--to-group-only sends to group " + output.Safe(c.Args[0]) + " alone"
		}
		return r
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return r
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	if g, err := client.Group(ctx, c.Args[0]); err == nil && o.To == "" && !g.FIFO {
		r.advice = "--to-group-only sends to group " + output.Safe(c.Args[0]) + " alone"
	}
	if o.To == "" {
		if r.Topics, err = s.topics(ctx, c.Args[0], client); err != nil {
			return r
		}
	}
	if len(r.Topics) > most {
		return r
	}
	groups := map[string]bool{}
	for _, name := range r.Topics {
		t, err := client.Topic(ctx, name)
		if err != nil {
			return r
		}
		for _, g := range t.Groups {
			groups[g] = true
		}
	}
	if delete(groups, c.Args[0]); len(groups) == 0 && len(r.Topics) > 0 {
		return nil
	}
	groups[c.Args[0]] = true
	r.Groups = slices.Sorted(maps.Keys(groups))
	return r
}

// topics returns the topics of the original sends of the selected letters, or those of more
// letters; nil if they are not known.
func (s *selection) topics(ctx context.Context, group string, client *admin.Client) ([]string, error) {
	found := map[string]bool{}
	switch {
	case s.topic != "":
		found[s.topic] = true
	case len(s.ids) > 0 && len(s.ids) <= most:
		page, err := client.DeadLetters(ctx, group, status.DeadLetterQuery{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: s.ids}, In: s.in, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, l := range page.DeadLetters {
			found[l.Origin.Topic] = true
		}
	default:
		page, err := client.DeadLetterClasses(ctx, group, status.DeadLetterClassQuery{In: s.in, Limit: maxClasses})
		if err != nil {
			return nil, err
		}
		in, err := client.Topic(ctx, cmp.Or(s.in, tidegate.DeadLetterTopic(group)))
		if err != nil || page.Other != nil || page.Next != "" || page.Letters != in.StoredMessages { // it has letters without a class
			return nil, err
		}
		for _, k := range page.Classes {
			if s.class == "" || s.class == k.Fingerprint {
				found[k.Topic] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// String returns the receivers with the advice, as the end of a sentence.
func (r *receivers) String() string {
	text := "all groups of "
	switch len(r.Topics) {
	case 0:
		text += "the topic of each message"
	case 1:
		text += "topic " + output.Safe(r.Topics[0])
	default:
		text += "topics " + listed(r.Topics)
	}
	if len(r.Groups) > 0 {
		text += ": " + listed(r.Groups)
	}
	return text + "; " + r.advice
}

// listed joins the first names of a list.
func listed(names []string) string {
	const first = 10
	more := ""
	if len(names) > first {
		more = fmt.Sprintf(" and %d more", len(names)-first)
		names = names[:first]
	}
	safe := make([]string, len(names))
	for i, name := range names {
		safe[i] = output.Safe(name)
	}
	return strings.Join(safe, ", ") + more
}
