package standalone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// An Admin manages a broker over its HTTP API, as a super-user. A topic is a name in the namespace
// public/default, for example "orders", or a full one, for example
// "persistent://public/default/orders". A namespace is TENANT/NAME. Several goroutines may call its
// methods. Each blocks until the broker has responded or ctx has ended.
type Admin struct{ url, token string }

// Admin returns an Admin of the broker. It is valid after a Restart too.
func (s *Server) Admin() *Admin {
	a := &Admin{url: s.AdminURL() + "/admin/v2/"}
	if s.key != nil {
		a.token = token(s.key, brokerRole, time.Time{})
	}
	return a
}

// A StatusError is a response of the HTTP API other than success.
type StatusError struct {
	Status int    // for example 409: the topic exists
	Reason string // the broker's text
}

// Error returns the status and the broker's text.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%d %s: %s", e.Status, http.StatusText(e.Status), e.Reason)
}

// CreateTopic creates a topic without partitions.
func (a *Admin) CreateTopic(ctx context.Context, topic string) error {
	return a.topic(ctx, "create topic", http.MethodPut, topic, "", nil, nil)
}

// CreatePartitionedTopic creates a topic with partitions, each of which is a topic
// TOPIC-partition-NUMBER.
func (a *Admin) CreatePartitionedTopic(ctx context.Context, topic string, partitions int) error {
	return a.topic(ctx, "create partitioned topic", http.MethodPut, topic, "/partitions", partitions, nil)
}

// CreateSubscription creates a subscription, which receives the messages that are sent from now on.
func (a *Admin) CreateSubscription(ctx context.Context, topic, subscription string) error {
	return a.topic(ctx, "create subscription "+subscription, http.MethodPut, topic, "/subscription/"+url.PathEscape(subscription), nil, nil)
}

// DeleteSubscription deletes a subscription with its backlog, and disconnects its consumers.
func (a *Admin) DeleteSubscription(ctx context.Context, topic, subscription string) error {
	return a.topic(ctx, "delete subscription "+subscription, http.MethodDelete, topic, "/subscription/"+url.PathEscape(subscription)+"?force=true", nil, nil)
}

// Unload closes a topic in the broker, which disconnects its producers and consumers. Their next
// lookup opens it again.
func (a *Admin) Unload(ctx context.Context, topic string) error {
	return a.topic(ctx, "unload topic", http.MethodPut, topic, "/unload", nil, nil)
}

// Terminate ends a topic for good: it accepts no more messages.
func (a *Admin) Terminate(ctx context.Context, topic string) error {
	return a.topic(ctx, "terminate topic", http.MethodPost, topic, "/terminate", nil, nil)
}

// TopicStats are the statistics of a topic, with partitions their sum.
type TopicStats struct {
	Partitions    int   // 0 for a topic without partitions
	Received      int64 // messages since the broker opened the topic
	BacklogSize   int64 // bytes that some subscription has not acknowledged
	BacklogQuota  int64 // the limit of BacklogSize; negative means none
	Producers     int   // that are connected
	Subscriptions map[string]SubscriptionStats
}

// SubscriptionStats are the statistics of a subscription.
type SubscriptionStats struct {
	Backlog   int64  // entries that are not acknowledged; a batch is one entry
	Unacked   int64  // messages that consumers hold
	Delayed   int64  // entries with a delivery time that has not come
	Type      string // of the consumers, for example "Shared"; empty before the first
	Consumers int    // that are connected
}

// TopicStats returns the statistics of a topic.
func (a *Admin) TopicStats(ctx context.Context, topic string) (TopicStats, error) {
	var r struct {
		Metadata struct {
			Partitions int `json:"partitions"`
		} `json:"metadata"`
		Received      int64             `json:"msgInCounter"`
		BacklogSize   int64             `json:"backlogSize"`
		BacklogQuota  int64             `json:"backlogQuotaLimitSize"`
		Publishers    []json.RawMessage `json:"publishers"`
		Subscriptions map[string]struct {
			Backlog   int64             `json:"msgBacklog"`
			Unacked   int64             `json:"unackedMessages"`
			Delayed   int64             `json:"msgDelayed"`
			Type      string            `json:"type"`
			Consumers []json.RawMessage `json:"consumers"`
		} `json:"subscriptions"`
	}
	const query = "?getPreciseBacklog=true"
	err := a.topic(ctx, "statistics of topic", http.MethodGet, topic, "/stats"+query, nil, &r)
	if status, ok := errors.AsType[*StatusError](err); ok && status.Status == http.StatusNotFound {
		err = a.topic(ctx, "statistics of topic", http.MethodGet, topic, "/partitioned-stats"+query+"&perPartition=false", nil, &r)
	}
	if err != nil {
		return TopicStats{}, err
	}
	s := TopicStats{
		Partitions: r.Metadata.Partitions, Received: r.Received, BacklogSize: r.BacklogSize, BacklogQuota: r.BacklogQuota,
		Producers: len(r.Publishers), Subscriptions: map[string]SubscriptionStats{},
	}
	for name, sub := range r.Subscriptions {
		s.Subscriptions[name] = SubscriptionStats{Backlog: sub.Backlog, Unacked: sub.Unacked, Delayed: sub.Delayed, Type: sub.Type, Consumers: len(sub.Consumers)}
	}
	return s, nil
}

// CreateNamespace creates a namespace of a tenant that exists, for example "public/orders".
func (a *Admin) CreateNamespace(ctx context.Context, namespace string) error {
	return a.do(ctx, "create namespace "+namespace, http.MethodPut, "namespaces/"+namespace, nil, nil)
}

// SetBacklogQuota limits the bytes of a backlog in each topic of a namespace. policy is
// "producer_request_hold", "producer_exception" or "consumer_backlog_eviction". The broker applies it
// each backlogQuotaCheckIntervalInSeconds.
func (a *Admin) SetBacklogQuota(ctx context.Context, namespace string, limit int64, policy string) error {
	return a.do(ctx, "backlog quota of namespace "+namespace, http.MethodPost, "namespaces/"+namespace+"/backlogQuota?backlogQuotaType=destination_storage",
		map[string]any{"limitSize": limit, "policy": policy}, nil)
}

// SetAutoTopicCreation permits or forbids that producers and consumers of a namespace create topics.
func (a *Admin) SetAutoTopicCreation(ctx context.Context, namespace string, allow bool) error {
	return a.do(ctx, "automatic topics of namespace "+namespace, http.MethodPost, "namespaces/"+namespace+"/autoTopicCreation",
		map[string]any{"allowAutoTopicCreation": allow, "topicType": "non-partitioned"}, nil)
}

// GrantPermission gives a role permissions for the topics of a namespace: "produce" and "consume".
// They replace those of the role.
func (a *Admin) GrantPermission(ctx context.Context, namespace, role string, actions ...string) error {
	return a.do(ctx, "permissions of role "+role+" for namespace "+namespace, http.MethodPost,
		"namespaces/"+namespace+"/permissions/"+url.PathEscape(role), append([]string{}, actions...), nil)
}

// topic sends a request for a topic.
func (a *Admin) topic(ctx context.Context, operation, method, topic, path string, body, result any) error {
	name, err := topicPath(topic)
	if err != nil {
		return err
	}
	return a.do(ctx, operation+" "+topic, method, name+path, body, result)
}

// topicPath returns the path of a topic in the HTTP API: persistent/TENANT/NAMESPACE/NAME.
func topicPath(topic string) (string, error) {
	domain, name, full := strings.Cut(topic, "://")
	if !full {
		domain, name = "persistent", topic
	}
	parts := strings.SplitN(name, "/", 3)
	if len(parts) == 1 && !full {
		parts = []string{"public", "default", name}
	}
	if len(parts) < 3 || domain == "" || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", fmt.Errorf("topic %q: use NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME", topic)
	}
	return domain + "/" + parts[0] + "/" + parts[1] + "/" + url.PathEscape(parts[2]), nil
}

// do sends a request and decodes the response into result, if it is not nil.
func (a *Admin) do(ctx context.Context, operation, method, path string, body, result any) error {
	if err := a.send(ctx, method, path, body, result); err != nil {
		return fmt.Errorf("pulsar admin: %s: %w", operation, err)
	}
	return nil
}

func (a *Admin) send(ctx context.Context, method, path string, body, result any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err != nil {
		return err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		var reason struct{ Reason string }
		if json.Unmarshal(text, &reason) != nil || reason.Reason == "" {
			reason.Reason = string(bytes.TrimSpace(text))
		}
		return &StatusError{Status: response.StatusCode, Reason: reason.Reason}
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(text, result)
}
