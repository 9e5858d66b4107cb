package admin_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// ofData are the operations of openapi.yaml that belong to transport/rest.
var ofData = []string{
	"sendMessages", "recallMessage", "receiveMessages", "acknowledge", "changeInvisibleDuration", "snooze", "retry", "deadLetter", "reconsumeLater", "negativeAcknowledge",
	"putLiteConsumer", "patchLiteConsumer", "deleteLiteConsumer", "listEndedLite",
}

// ofPages are the operations of pages in browsers.
var ofPages = []string{"login", "logout", "live", "history"}

func document(t *testing.T) *openapi3.T {
	t.Helper()
	text := assert.Value(os.ReadFile("../server/openapi.yaml"))(t)
	doc := assert.Value(openapi3.NewLoader().LoadFromData(text))(t)
	return doc
}

// A story calls methods of the client one after the other, each of which makes the request that the
// document has under the operation's name.
type story struct {
	*env
	done map[string]bool // by operation
}

func (s *story) call(operation string, f func(c *admin.Client) error) {
	s.t.Helper()
	s.requests()
	err := f(s.c)
	assert.NoError(s.t, err, "%s", operation)
	for pattern, n := range s.requests() {
		assert.That(s.t, n == 1, "%s made %d requests of %s, want 1", operation, n, pattern)
		s.done[operation+" "+pattern] = true
	}
}

func equal[T any](got, want T) error {
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("got %+v\nwant %+v", got, want)
	}
	return nil
}

// Every operation of openapi.yaml that is not about messages has a method, which makes that
// request, and whose result is that of the engine.
func TestOperations(t *testing.T) {
	s := &story{open(t, server.Options{}, admin.Options{}, false), map[string]bool{}}
	ctx := t.Context()
	dlq := tidegate.DeadLetterTopic("billing")

	s.call("putTopic", func(c *admin.Client) error {
		got, err := c.PutTopic(ctx, "orders", settings.Topic{
			Type: settings.TopicFIFO, Queues: 2, DuplicateWindow: settings.Duration(time.Minute), MaxBacklog: settings.Limit{Messages: 5, Bytes: 6, Age: settings.Duration(time.Hour)},
			MaxRate: settings.Rate{MessagesPerSecond: 1.5, BytesPerSecond: 7, Burst: 8}, Retention: settings.Retention{Time: settings.Duration(-time.Second), Bytes: 9, Consumed: true},
			Transaction: settings.Transaction{Timeout: settings.Duration(time.Second), CheckInterval: settings.Duration(2 * time.Second), CheckMax: 3},
		})
		want := settings.Topic{
			Type: settings.TopicFIFO, Queues: 2, DuplicateWindow: settings.Duration(time.Minute), MaxBacklog: settings.Limit{Messages: 5, Bytes: 6, Age: settings.Duration(time.Hour)},
			MaxRate: settings.Rate{MessagesPerSecond: 1.5, BytesPerSecond: 7, Burst: 8}, Retention: settings.Retention{Time: settings.Duration(-time.Second), Bytes: 9, Consumed: true},
			Transaction: settings.Transaction{Timeout: settings.Duration(time.Second), CheckInterval: settings.Duration(2 * time.Second), CheckMax: 3},
		}
		stored, _ := s.b.TopicSettings("orders")
		return errors.Join(err, equal(got.Name, "orders"), equal(got.Queues, 2), equal(stored, want))
	})
	s.call("putTopic", func(c *admin.Client) error {
		got, err := c.PutTopic(ctx, "orders", settings.Topic{Type: settings.TopicFIFO, Queues: 2}) // missing fields have their defaults
		return errors.Join(err, equal(got.MaxBacklog, settings.Limit{}))
	})
	s.call("putGroup", func(c *admin.Client) error {
		got, err := c.PutGroup(ctx, "billing", settings.Group{
			FIFO: true, MaxAttempts: -1, Retry: backoff.Steps{time.Second, time.Minute}, Start: "latest", OnExhausted: "park", FIFORetryInterval: settings.Duration(time.Second),
			MaxBacklog: settings.Limit{Messages: 4}, NegativeAck: settings.NegativeAck{Delay: settings.Duration(time.Hour), MaxRedeliveries: 2},
		})
		g, _ := s.b.Group("billing")
		return errors.Join(err, equal(got.Name, "billing"), equal(g.Group.MaxAttempts, -1), equal(g.Group.Retry, backoff.Steps{time.Second, time.Minute}),
			equal(g.Start, settings.StartLatest), equal(g.OnExhausted, settings.OnExhaustedPark), equal(g.FIFORetryInterval, settings.Duration(time.Second)),
			equal(g.MaxBacklog, settings.Limit{Messages: 4}), equal(g.NegativeAck, settings.NegativeAck{Delay: settings.Duration(time.Hour), MaxRedeliveries: 2}))
	})
	s.call("putGroup", func(c *admin.Client) error {
		_, err := c.PutGroup(ctx, "billing", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: "park"})
		return err
	})
	s.call("putGroup", func(c *admin.Client) error {
		got, err := c.PutGroup(ctx, "pulsar", settings.Group{RetryTopic: settings.RetryTopic{
			Enabled: true, Naming: "2.6.1", Topic: "again", DeadLetterTopic: "gone", MaxRetries: 3, Levels: backoff.Steps{time.Second}, SubscriptionType: "key_shared",
		}})
		return errors.Join(err, equal(got.RetryTopic, settings.RetryTopic{
			Enabled: true, Naming: "2.6.1", Topic: "again", DeadLetterTopic: "gone", MaxRetries: 3, Levels: backoff.Steps{time.Second}, SubscriptionType: "key_shared",
		}))
	})

	// Two message groups; one is parked.
	for i := range 4 {
		m := message("orders", fmt.Sprint("m", i))
		m.MessageGroup, m.Properties, m.Keys, m.Tag = fmt.Sprint("mg", i%2), map[string]string{"p": "v"}, []string{"k"}, "tag"
		s.send(m)
	}
	ds, err := s.b.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 2, InvisibleDuration: time.Hour})
	assert.MustThat(t, err == nil && len(ds) == 2, "received %d, %v", len(ds), err)
	assert.Must(t, assert.Err(s.b.Settle(ctx, ds[0], transport.Verdict{Kind: transport.Retry, Reason: "no such customer"})))
	s.call("getTopic", func(c *admin.Client) error {
		got, err := c.Topic(ctx, "orders")
		return errors.Join(err, equal(got.StoredMessages, 4), equal(got.Groups, []string{"billing"}), equal(got.Backlog.Messages, 4))
	})
	s.call("getGroup", func(c *admin.Client) error {
		got, err := c.Group(ctx, "billing")
		return errors.Join(err, equal(got.MaxAttempts, 1), equal(len(got.Topics), 1), equal(got.Topics[0].Inflight, 1), equal(got.Topics[0].ParkedGroups, 1))
	})
	s.call("metrics", func(c *admin.Client) error {
		got, err := c.MetricTotals(ctx)
		return errors.Join(err, equal(strings.Contains(got, `topic="*"`), true), equal(strings.Contains(got, `topic="orders"`), false))
	})
	s.call("listTopics", func(c *admin.Client) error {
		got, err := c.Topics(ctx)
		return errors.Join(err, equal(slices.ContainsFunc(got, func(t status.Topic) bool { return t.Name == "orders" }), true))
	})
	s.call("listGroups", func(c *admin.Client) error {
		got, err := c.Groups(ctx)
		return errors.Join(err, equal(len(got), 2), equal(got[0].Name, "billing"))
	})
	s.call("browseMessages", func(c *admin.Client) error {
		q := status.MessageQuery{
			MessageFilter: status.MessageFilter{ID: "m3", Tag: "tag", MessageGroup: "mg1", Key: "k", Properties: map[string]string{"p": "v"}, Contains: "x"},
			Newest:        true, Contents: true, Limit: 3, Since: time.Now().Add(-time.Hour), Before: time.Now().Add(time.Hour),
		}
		found, err := c.Messages(ctx, "orders", status.MessageQuery{MessageFilter: status.MessageFilter{ID: "m3"}})
		s.requests() // of two calls the second counts
		if err != nil || len(found.Messages) != 1 {
			return fmt.Errorf("%+v, %w", found, err)
		}
		q.Contains = string(message("orders", "m3").Body)
		q.Queue, q.Offset = &found.Messages[0].Queue, &found.Messages[0].Offset
		got, err := c.Messages(ctx, "orders", q)
		if err != nil || len(got.Messages) != 1 {
			return fmt.Errorf("%+v, %w", got, err)
		}
		m := got.Messages[0]
		return errors.Join(equal(m.ID, "m3"), equal(m.Tag, "tag"), equal(m.MessageGroup, "mg1"), equal(m.Keys, []string{"k"}), equal(m.Properties, map[string]string{"p": "v"}),
			equal(string(m.Body), q.Contains), equal(m.StoredAt.IsZero(), false), equal(got.Complete, true))
	})
	s.call("traceMessage", func(c *admin.Client) error {
		got, err := c.Trace(ctx, "orders", "billing", status.MessageQuery{
			MessageFilter: status.MessageFilter{ID: ds[0].ID}, Since: time.Now().Add(-time.Hour), Before: time.Now().Add(time.Hour), Limit: 3,
		})
		if err != nil || len(got.Messages) != 1 || len(got.Messages[0].Groups) != 1 {
			return fmt.Errorf("%+v, %w", got, err)
		}
		f := got.Messages[0].Groups[0]
		return errors.Join(equal(f.Group, "billing"), equal(f.State, "parked"), equal(f.Reason, "no such customer"), equal(f.Attempt, 1))
	})
	s.call("listTopics", func(c *admin.Client) error {
		got, next, err := c.TopicsPage(ctx, "", "order*", 1)
		return errors.Join(err, equal(len(got), 1), equal(got[0].Name, "orders"), equal(next, ""))
	})
	s.call("listGroups", func(c *admin.Client) error {
		got, next, err := c.GroupsPage(ctx, "", "", 1)
		return errors.Join(err, equal(len(got), 1), equal(got[0].Name, "billing"), equal(next, "billing"))
	})
	s.call("listTopics", func(c *admin.Client) error {
		got, next, err := c.TopicSummaries(ctx, admin.ListQuery{Match: "o*", State: "backlog", Sort: "-backlog", Limit: 1})
		return errors.Join(err, equal(len(got), 1), equal(got[0].Name, "orders"), equal(next, ""))
	})
	s.call("listGroups", func(c *admin.Client) error {
		got, next, err := c.GroupSummaries(ctx, admin.ListQuery{Topic: "orders", Limit: 1})
		return errors.Join(err, equal(len(got), 1), equal(got[0].Group, "billing"), equal(next, ""))
	})
	s.call("listParked", func(c *admin.Client) error {
		got, err := c.Parked(ctx, "billing", status.ParkedQuery{Topic: "orders", Limit: 10, After: ""})
		if err != nil || len(got.Groups) != 1 {
			return fmt.Errorf("%+v, %w", got, err)
		}
		g := got.Groups[0]
		return errors.Join(equal(g.MessageGroup, ds[0].MessageGroup), equal(g.Reason, "no such customer"), equal(g.MessageID, ds[0].ID), equal(g.Attempts, 1), equal(g.Since.IsZero(), false))
	})
	s.call("listLeases", func(c *admin.Client) error {
		got, err := c.Leases(ctx, "billing", "orders", status.LeaseQuery{State: "parked", ByDue: true, Limit: 10})
		return errors.Join(err, equal(len(got.Leases), 1), equal(got.Next, ""))
	})
	s.call("redriveParked", func(c *admin.Client) error {
		got, err := c.RedriveParked(ctx, "billing", status.ParkedSelection{Topic: "orders", MessageGroup: ds[0].MessageGroup, DeadLetter: true})
		return errors.Join(err, equal(got.MessageGroups, 1))
	})
	if _, err := s.b.Settle(ctx, ds[1], transport.Verdict{Kind: transport.DeadLetter, Reason: "also gone"}); err != nil { // it had its last attempt, and is parked
		t.Fatal(err)
	}
	s.call("redriveParked", func(c *admin.Client) error {
		got, err := c.RedriveParked(ctx, "billing", status.ParkedSelection{DeadLetter: true})
		return errors.Join(err, equal(got.MessageGroups, 1))
	})
	s.call("listQueues", func(c *admin.Client) error {
		got, err := c.Queues(ctx, "orders", "", 1)
		return errors.Join(err, equal(len(got.Queues), 1))
	})
	s.call("listGroupQueues", func(c *admin.Client) error {
		got, err := c.GroupQueues(ctx, "billing", "orders", "", 1)
		return errors.Join(err, equal(len(got.Queues), 1))
	})
	s.call("rewindGroup", func(c *admin.Client) error {
		got, err := c.PlanRewind(ctx, "billing", "orders", status.Position{Earliest: true})
		return errors.Join(err, equal(len(got) > 0, true))
	})
	assert.Must(t, assert.Err(s.b.PutTopic(ctx, "sessions", settings.Topic{Type: settings.TopicLite})))
	for _, lite := range []string{"a", "b", "c-d"} {
		assert.Must(t, s.b.Send(ctx, []*tidegate.Message{{ID: lite, Topic: "sessions", LiteTopic: lite, Body: []byte("x")}})[0].Err)
	}
	s.call("listLiteTopics", func(c *admin.Client) error {
		got, err := c.LiteTopics(ctx, "sessions", status.LiteTopicQuery{After: "a", Limit: 1})
		if err != nil || len(got.LiteTopics) != 1 {
			return fmt.Errorf("got %+v, %w", got, err)
		}
		return errors.Join(equal(got.Total, 3), equal(got.More, true), equal(got.LiteTopics[0].Name, "b"), equal(got.LiteTopics[0].Messages, 1))
	})
	s.call("deleteLiteTopic", func(c *admin.Client) error {
		err := c.DeleteLiteTopic(ctx, "sessions", "c-d")
		page, perr := s.b.LiteTopics("sessions", status.LiteTopicQuery{})
		return errors.Join(err, perr, equal(page.Total, 2))
	})
	s.call("purgeTopic", func(c *admin.Client) error {
		got, err := c.CountPurge(ctx, "orders")
		return errors.Join(err, equal(got.Messages > 0, true))
	})
	s.call("getSchedule", func(c *admin.Client) error {
		got, err := c.Schedule(ctx, "billing", "orders")
		return errors.Join(err, equal(len(got.Buckets) > 10, true), equal(got.Now.IsZero(), false))
	})
	s.call("listFailures", func(c *admin.Client) error {
		got, err := c.Failures(ctx, "billing", status.FailureQuery{Topic: "orders", Limit: 5, After: "1000000"})
		if err != nil || len(got.Failures) == 0 || got.Next != "" {
			return fmt.Errorf("%+v, %w", got, err)
		}
		f := got.Failures[len(got.Failures)-1]
		return errors.Join(equal(f.Topic, "orders"), equal(f.Reason, "no such customer"), equal(f.Fate, "parked"), equal(f.MessageID, ds[0].ID))
	})
	s.call("listDeadLetterClasses", func(c *admin.Client) error {
		got, err := c.DeadLetterClasses(ctx, "billing", status.DeadLetterClassQuery{Topic: "orders", In: dlq, Limit: 5})
		if err != nil || len(got.Classes) != 2 {
			return fmt.Errorf("%+v, %w", got, err)
		}
		return errors.Join(equal(got.Letters, 2), equal(got.Classes[0].Count, 1), equal(got.Classes[0].Topic, "orders"), equal(got.Next, ""))
	})
	s.call("listDeadLetters", func(c *admin.Client) error {
		got, err := c.DeadLetters(ctx, "billing", status.DeadLetterQuery{
			DeadLetterFilter: status.DeadLetterFilter{Topic: "orders", MessageIDs: []string{ds[0].ID, "other"}, Reason: "customer", Since: time.Now().Add(-time.Hour), Before: time.Now().Add(time.Hour)},
			In:               dlq, Bodies: true, Limit: 5,
		})
		if err != nil || len(got.DeadLetters) != 1 {
			return fmt.Errorf("%+v, %w", got, err)
		}
		d := got.DeadLetters[0]
		return errors.Join(equal(d.MessageID, ds[0].ID), equal(string(d.Body), string(ds[0].Body)), equal(d.BodySize, len(ds[0].Body)), equal(d.Properties, map[string]string{"p": "v"}),
			equal(d.MessageGroup, ds[0].MessageGroup), equal(d.Keys, []string{"k"}), equal(d.Tag, "tag"), equal(d.StoredAt.IsZero(), false), equal(d.BornAt.IsZero(), false),
			equal(d.Origin, tidegate.DeadLetter{Topic: "orders", MessageID: ds[0].ID, Queue: ds[0].Queue, Offset: ds[0].Offset, Group: "billing", Attempts: 1, Reason: "no such customer"}))
	})
	s.call("listDeadLetters", func(c *admin.Client) error {
		got, err := c.CountDeadLetters(ctx, "billing", status.DeadLetterQuery{DeadLetterFilter: status.DeadLetterFilter{Topic: "orders", Fingerprint: "51046da5ba83"}, In: dlq, Newest: true})
		return errors.Join(err, equal(got, status.DeadLetterCount{Count: 1}))
	})
	s.call("redriveDeadLetters", func(c *admin.Client) error {
		got, err := c.RedriveDeadLetters(ctx, "billing", status.DeadLetterSelection{
			DeadLetterFilter: status.DeadLetterFilter{Fingerprint: "51046da5ba83"}, In: dlq, Newest: true, DryRun: true,
		})
		return errors.Join(err, equal(got, status.DeadLetterRedrive{Redriven: 1}))
	})
	s.call("purgeDeadLetters", func(c *admin.Client) error {
		got, err := c.PurgeDeadLetters(ctx, "billing", status.DeadLetterSelection{In: dlq, Newest: true, DryRun: true})
		return errors.Join(err, equal(got, status.DeadLetterPurge{Purged: 2}))
	})
	s.call("redriveDeadLetters", func(c *admin.Client) error {
		got, err := c.RedriveDeadLetters(ctx, "billing", status.DeadLetterSelection{
			DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{ds[0].ID}, Topic: "orders", Since: time.Now().Add(-time.Hour)}, In: dlq, To: "orders", Limit: 7, MaxRedrives: 3,
		})
		return errors.Join(err, equal(got, status.DeadLetterRedrive{Redriven: 1}))
	})
	s.call("purgeDeadLetters", func(c *admin.Client) error {
		got, err := c.PurgeDeadLetters(ctx, "billing", status.DeadLetterSelection{In: dlq, Limit: 10})
		return errors.Join(err, equal(got, status.DeadLetterPurge{Purged: 1}))
	})
	s.call("rewindGroup", func(c *admin.Client) error {
		got, err := c.Rewind(ctx, "billing", "orders", status.Position{Earliest: true})
		return errors.Join(err, equal(len(got), 2))
	})
	for _, to := range []status.Position{{Latest: true}, {Time: time.Now()}, {Offsets: map[int]int64{1: 0}}} {
		s.call("rewindGroup", func(c *admin.Client) error {
			got, err := c.Rewind(ctx, "billing", "orders", to)
			if to.Offsets != nil {
				err = errors.Join(err, equal(got[len(got)-1].Queue, 1), equal(got[len(got)-1].To, 0))
			}
			return err
		})
	}
	s.call("purgeTopic", func(c *admin.Client) error {
		got, err := c.PurgeTopic(ctx, "orders")
		return errors.Join(err, equal(got.Messages > 0, true))
	})
	s.call("putThrottle", func(c *admin.Client) error {
		l := settings.Limits{
			MaxBacklog: settings.Limit{Messages: 1000}, ClientQuota: settings.Quota{MessagesPerSecond: 5, Burst: 6},
			Pressure: settings.Pressure{MinFreeDisk: -1, MaxCompactionDebt: 1 << 30, MaxWriteStall: settings.Duration(time.Second), MaxColdReads: 1 << 20, ColdDistance: 1 << 21},
		}
		got, err := c.SetLimits(ctx, l)
		return errors.Join(err, equal(got.Limits, l))
	})
	s.call("patchThrottle", func(c *admin.Client) error {
		got, err := c.PatchLimits(ctx, map[string]any{"client_quota": nil, "max_backlog": map[string]any{"bytes": 1 << 30}})
		return errors.Join(err, equal(got.Limits.ClientQuota, settings.Quota{}), equal(got.Limits.MaxBacklog, settings.Limit{Messages: 1000, Bytes: 1 << 30}),
			equal(got.Limits.Pressure.ColdDistance, 1<<21))
	})
	s.call("patchGroup", func(c *admin.Client) error {
		got, err := c.PatchGroup(ctx, "billing", settings.Group{NegativeAck: settings.NegativeAck{MaxRedeliveries: 77}})
		return errors.Join(err, equal(got.NegativeAck.MaxRedeliveries, 77), equal(got.MaxAttempts, 1), equal(got.OnExhausted, settings.OnExhaustedPark))
	})
	s.call("getThrottle", func(c *admin.Client) error {
		got, err := c.Throttles(ctx)
		return errors.Join(err, equal(len(got.Throttles), 0), equal(slices.ContainsFunc(got.NotReached, func(l status.LimitState) bool {
			return l.Limit == "topic backlog messages" && l.Subject == "orders" && l.Mark == 1000
		}), true))
	})
	settings := settings.Address{
		RedeliveryDelay: new(settings.Milliseconds(5000)), RedeliveryDelayMultiplier: new(1.5), RedeliveryCollisionAvoidanceFactor: new(0.1),
		MaxRedeliveryDelay: new(settings.Milliseconds(60_000)), MaxDeliveryAttempts: new(-1), DeadLetterAddress: new("graveyard"), AutoCreateDeadLetterResources: new(true),
		DeadLetterQueuePrefix: new("P."), DeadLetterQueueSuffix: new(".S"), PersistDeliveryCountBeforeDelivery: new(true), AutoDeleteQueues: new(false),
		ExpiryDelay: new(settings.Milliseconds(3_600_000)), ExpiryAddress: new("old"),
	}
	s.call("putAddressSettings", func(c *admin.Client) error {
		got, err := c.PutAddressSettings(ctx, "news.#", settings)
		return errors.Join(err, equal(got, status.Address{Match: "news.#", Address: settings, Revision: got.Revision}), equal(got.Revision != "", true))
	})
	s.call("getAddressSettings", func(c *admin.Client) error {
		got, err := c.AddressSettings(ctx, "news.#")
		return errors.Join(err, equal(got.Address, settings))
	})
	s.call("listAddressSettings", func(c *admin.Client) error {
		got, err := c.AllAddressSettings(ctx)
		return errors.Join(err, equal(len(got), 1), equal(got[0].Match, "news.#"))
	})
	s.call("getTopicAddressSettings", func(c *admin.Client) error {
		got, err := c.TopicAddressSettings(ctx, "news.europe")
		return errors.Join(err, equal(got.Topic, "news.europe"), equal(got.Matches, []string{"news.#"}), equal(*got.MaxDeliveryAttempts, -1))
	})
	s.call("deleteAddressSettings", func(c *admin.Client) error { return c.DeleteAddressSettings(ctx, "news.#") })
	s.call("deleteGroup", func(c *admin.Client) error { return c.DeleteGroup(ctx, "billing") })
	s.call("deleteTopic", func(c *admin.Client) error { return c.DeleteTopic(ctx, dlq) })
	s.call("postSnapshot", func(c *admin.Client) error {
		_, err := c.Snapshot(ctx)
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeBadRequest {
			return fmt.Errorf("a broker without a directory for snapshots: %w; want 40000", err)
		}
		return nil
	})
	s.call("whoami", func(c *admin.Client) error {
		got, err := c.Whoami(ctx)
		return errors.Join(err, equal(got, status.Session{Rules: []status.Rule{}}))
	})
	s.call("listAudit", func(c *admin.Client) error {
		first, err := c.Audit(ctx, status.AuditQuery{Operation: "putTopic", Subject: "orders", Since: time.Now().Add(-time.Hour), Limit: 1})
		if err != nil || len(first.Records) != 1 || first.Next == "" {
			return fmt.Errorf("%+v, %w", first, err)
		}
		r := first.Records[0]
		return errors.Join(equal(r.Operation, "putTopic"), equal(r.Subject, "orders"), equal(r.Result, "ok"), equal(r.Key, ""))
	})
	s.call("listClients", func(c *admin.Client) error {
		page, err := c.Clients(ctx, status.ClientQuery{
			Match: "*", Kind: "http", Group: "billing", Topic: "orders", Language: "GO", Version: "1", Outdated: true, Idle: time.Second, After: "x", Limit: 1,
		})
		return errors.Join(err, equal(page.AsOf.IsZero(), false), equal(page.Total, 0))
	})
	s.call("overview", func(c *admin.Client) error {
		got, err := c.Overview(ctx)
		return errors.Join(err, equal(got.Ready, true), equal(got.Totals.Topics > 0, true), equal(got.Started.IsZero(), false))
	})
	s.call("health", func(c *admin.Client) error { return c.Healthy(ctx) })
	s.call("readiness", func(c *admin.Client) error { return c.Ready(ctx) })
	s.call("metrics", func(c *admin.Client) error {
		text, err := c.Metrics(ctx)
		return errors.Join(err, equal(strings.Contains(text, "# TYPE tidegate_"), true))
	})
	s.call("openapi", func(c *admin.Client) error {
		text, err := c.OpenAPI(ctx)
		return errors.Join(err, equal(strings.HasPrefix(text, "openapi: 3.1"), true))
	})

	for path, item := range document(t).Paths.Map() {
		for method, op := range item.Operations() {
			key := op.OperationID + " " + method + " " + path
			assert.That(t, s.done[key] || slices.Contains(ofData, op.OperationID) || slices.Contains(ofPages, op.OperationID),
				"no method makes the request of %s", key)
			delete(s.done, key)
		}
	}
	for key := range s.done {
		t.Errorf("%s is not in openapi.yaml", key)
	}
}

// The fields of every type are those of its schema.
func TestSchemas(t *testing.T) {
	schemas := document(t).Components.Schemas
	for name, v := range map[string]any{
		"TopicConfig": settings.Topic{}, "Topic": status.Topic{}, "Limit": settings.Limit{}, "Rate": settings.Rate{}, "Retention": settings.Retention{},
		"TransactionSettings": settings.Transaction{}, "Backlog": status.Backlog{}, "GroupConfig": settings.Group{}, "Group": status.Group{},
		"RetryTopicConfig": settings.RetryTopic{}, "NegativeAckConfig": settings.NegativeAck{}, "Subscription": status.Subscription{},
		"QueueRewind": status.QueueRewind{}, "ParkedPage": status.ParkedPage{}, "ParkedGroup": status.ParkedGroup{}, "ParkedSelection": status.ParkedSelection{},
		"ParkedRedrive": status.ParkedRedrive{}, "DeadLetterPage": status.DeadLetterPage{}, "DeadLetter": status.DeadLetter{}, "DeadLetterOrigin": tidegate.DeadLetter{},
		"DeadLetterRedrive": status.DeadLetterRedrive{}, "DeadLetterPurge": status.DeadLetterPurge{}, "Throttle": status.Throttle{}, "LimitState": status.LimitState{},
		"ThrottleState": status.Throttles{}, "Limits": settings.Limits{}, "Quota": settings.Quota{}, "Pressure": settings.Pressure{},
		"AddressSettings": settings.Address{}, "AddressSetting": status.Address{}, "TopicAddressSettings": status.TopicAddress{},
		"StoredMessage": status.StoredMessage{}, "MessagePage": status.MessagePage{}, "TracedMessage": status.TracedMessage{}, "Trace": status.Trace{},
	} {
		want := properties(schemas[name].Value)
		have := fields(reflect.TypeOf(v))
		if !maps.Equal(have, want) {
			t.Errorf("%s: the type has %v\nopenapi.yaml has %v", name, slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want)))
		}
	}
}

func properties(s *openapi3.Schema) map[string]bool {
	all := map[string]bool{}
	for name := range s.Properties {
		all[name] = true
	}
	for _, part := range s.AllOf {
		maps.Copy(all, properties(part.Value))
	}
	return all
}

func fields(typ reflect.Type) map[string]bool {
	all := map[string]bool{}
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(all, fields(f.Type))
			continue
		}
		all[name] = true
	}
	return all
}

// The iterator reaches every dead letter once, with any size of pages, and stops when the loop
// does.
func TestAllDeadLetters(t *testing.T) {
	e := open(t, server.Options{}, admin.Options{}, false)
	assert.Must(t, assert.Err(e.c.PutTopic(t.Context(), "orders", settings.Topic{})))
	const n = 250
	var msgs []*tidegate.Message
	for i := range n {
		msgs = append(msgs, message("orders", fmt.Sprint("m", i)))
	}
	e.send(msgs...)
	e.giveUp("billing", "orders", "why", n)
	for _, limit := range []int{0, 7, 1000} {
		seen := map[string]int{}
		for d, err := range e.c.AllDeadLetters(t.Context(), "billing", status.DeadLetterQuery{Limit: limit}) {
			assert.Must(t, err)
			seen[d.MessageID]++
			if len(seen) == n/2 && limit == 7 {
				break
			}
		}
		want := n
		if limit == 7 {
			want = n / 2
		}
		assert.That(t, len(seen) == want, "limit %d: %d dead letters, want %d", limit, len(seen), want)
		for id, times := range seen {
			assert.That(t, times == 1, "limit %d: %s came %d times", limit, id, times)
		}
	}
	for _, err := range e.c.AllDeadLetters(t.Context(), "nobody", status.DeadLetterQuery{}) {
		assert.That(t, err != nil, "a group that does not exist has dead letters")
	}
}

// The client changes settings only if they have the revision that it read.
func TestIfRevision(t *testing.T) {
	e := open(t, server.Options{}, admin.Options{}, false)
	ctx := t.Context()
	topic, err := e.c.PutTopic(ctx, "orders", settings.Topic{})
	assert.Must(t, err)
	group, err := e.c.PutGroup(ctx, "billing", settings.Group{})
	assert.Must(t, err)
	if _, err := e.c.IfRevision(topic.Revision).PutTopic(ctx, "orders", settings.Topic{MaxBacklog: settings.Limit{Messages: 1}}); err != nil {
		t.Error(err)
	}
	assert.NoError(t, assert.Err(e.c.IfRevision(group.Revision).PatchGroup(ctx, "billing", settings.Group{MaxAttempts: 3})))
	late := e.c.IfRevision(topic.Revision)
	_, put := late.PutTopic(ctx, "orders", settings.Topic{})
	late = e.c.IfRevision(group.Revision)
	_, putGroup := late.PutGroup(ctx, "billing", settings.Group{})
	_, patch := late.PatchGroup(ctx, "billing", settings.Group{MaxAttempts: 4})
	_, none := e.c.IfRevision("").PutGroup(ctx, "billing", settings.Group{})
	for call, err := range map[string]error{
		"PutTopic": put, "PutGroup": putGroup, "PatchGroup": patch, "an empty revision": none,
		"DeleteTopic": late.DeleteTopic(ctx, "orders"), "DeleteGroup": late.DeleteGroup(ctx, "billing"),
	} {
		e, ok := errors.AsType[*admin.Error](err)
		assert.That(t, ok && e.Status == 412 && e.Err.Code == 42800, "%s on an old revision: %v", call, err)
	}
	if _, err := late.Rewind(ctx, "billing", "orders", status.Position{Latest: true}); !errors.Is(err, tidegate.ErrInvalid) {
		t.Errorf("a change without revisions: %v", err)
	}
	now, err := late.Group(ctx, "billing")
	assert.That(t, err == nil && now.MaxAttempts == 3, "the group has %d attempts, %v; want 3", now.MaxAttempts, err)
	assert.NoError(t, e.c.IfRevision(now.Revision).DeleteGroup(ctx, "billing"))
}

// A loop over pages ends with an error if the server repeats a cursor.
func TestRepeatedCursorEndsTheLoop(t *testing.T) {
	requests := 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests > 100 {
			t.Error("the loop does not end")
			http.Error(w, "", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"dead_letters":[{"message_id":"1"}],"next":"5"}`)
	}))
	defer web.Close()
	c, err := admin.New(web.URL, admin.Options{})
	assert.Must(t, err)
	n := 0
	for _, err = range c.AllDeadLetters(t.Context(), "g", status.DeadLetterQuery{}) {
		if err != nil {
			break
		}
		n++
	}
	assert.That(t, err != nil && n == 2 && requests == 2, "%d letters of %d requests, then %v; want 2 and an error", n, requests, err)
}

// Snapshot returns the path of a copy that a broker can open.
func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	b, err := broker.Open(broker.Options{Dir: filepath.Join(dir, "data")})
	assert.Must(t, err)
	defer b.Close()
	assert.Must(t, assert.Err(b.PutTopic(t.Context(), "orders", settings.Topic{})))
	s, err := server.New(b, server.Options{Advertise: "127.0.0.1:8081", SnapshotDir: dir})
	assert.Must(t, err)
	defer s.Close()
	web := httptest.NewServer(s.Handler())
	defer web.Close()
	path, err := client(t, web.URL, admin.Options{}).Snapshot(t.Context())
	assert.MustThat(t, err == nil && filepath.Dir(path) == dir, "the snapshot is in %q, %v; want a directory below %s", path, err, dir)
	assert.Must(t, os.Rename(path, filepath.Join(dir, "copy")))
	restored, err := broker.Open(broker.Options{Dir: filepath.Join(dir, "copy")})
	assert.Must(t, err)
	defer restored.Close()
	assert.NoError(t, assert.Err(restored.Topic("orders")))
}
