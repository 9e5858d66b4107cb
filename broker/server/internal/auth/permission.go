package auth

import (
	"net/http"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The needs of each RPC. A handle in an RPC needs no entry of its own: the engine rejects a handle
// that does not belong to the topic and group of the request.

// RPCs are the needs of all RPCs. One that is not here needs to administer
// the whole broker.
var RPCs = map[string]func(req any) []access.Need{
	"QueryRoute": rpcRow(func(q *rmqpb.QueryRouteRequest) []access.Need {
		return need(access.ToUse(q.GetTopic().GetName()))
	}),
	"QueryAssignment": rpcRow(func(q *rmqpb.QueryAssignmentRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup()) // it makes the group
	}),
	"Heartbeat": rpcRow(func(q *rmqpb.HeartbeatRequest) []access.Need {
		if group := q.GetGroup().GetName(); group != "" {
			return need(access.AsGroup(group))
		}
		return need(access.Signed())
	}),
	"NotifyClientTermination": rpcRow(func(*rmqpb.NotifyClientTerminationRequest) []access.Need {
		return need(access.Signed()) // a client ends only itself, because IDs of clients are per key
	}),
	"SendMessage": rpcRow(func(q *rmqpb.SendMessageRequest) []access.Need {
		needs := need(access.Signed())
		last := ""
		for i, m := range q.GetMessages() {
			if t := m.GetTopic().GetName(); i == 0 || t != last { // in a valid request it is one
				needs, last = append(needs, access.ToSend(t)), t
			}
		}
		return needs
	}),
	"RecallMessage":  rpcRow(func(q *rmqpb.RecallMessageRequest) []access.Need { return need(access.ToSend(q.GetTopic().GetName())) }),
	"EndTransaction": rpcRow(func(q *rmqpb.EndTransactionRequest) []access.Need { return need(access.ToSend(q.GetTopic().GetName())) }),
	"ReceiveMessage": rpcRow(func(q *rmqpb.ReceiveMessageRequest) []access.Need {
		return consume(q.GetMessageQueue().GetTopic(), q.GetGroup())
	}),
	"AckMessage": rpcRow(func(q *rmqpb.AckMessageRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup())
	}),
	"ChangeInvisibleDuration": rpcRow(func(q *rmqpb.ChangeInvisibleDurationRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup())
	}),
	"ForwardMessageToDeadLetterQueue": rpcRow(func(q *rmqpb.ForwardMessageToDeadLetterQueueRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup())
	}),
	"PullMessage": rpcRow(func(q *rmqpb.PullMessageRequest) []access.Need {
		return consume(q.GetMessageQueue().GetTopic(), q.GetGroup())
	}),
	"UpdateOffset": rpcRow(func(q *rmqpb.UpdateOffsetRequest) []access.Need {
		return consume(q.GetMessageQueue().GetTopic(), q.GetGroup())
	}),
	"GetOffset": rpcRow(func(q *rmqpb.GetOffsetRequest) []access.Need {
		return consume(q.GetMessageQueue().GetTopic(), q.GetGroup())
	}),
	"QueryOffset": rpcRow(func(q *rmqpb.QueryOffsetRequest) []access.Need {
		return need(access.ToUse(q.GetMessageQueue().GetTopic().GetName()))
	}),
	"SyncLiteSubscription": rpcRow(func(q *rmqpb.SyncLiteSubscriptionRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup())
	}),
	// Telemetry is asked with the settings that a client sends; nil is its beginning.
	requests.RPCTelemetry: rpcRow(func(in *rmqpb.Settings) []access.Need {
		needs := need(access.Signed())
		for _, t := range in.GetPublishing().GetTopics() {
			needs = append(needs, access.ToSend(t.GetName()))
		}
		if sub := in.GetSubscription(); sub != nil {
			needs = append(needs, access.AsGroup(sub.GetGroup().GetName()))
			for _, e := range sub.GetSubscriptions() {
				needs = append(needs, consume(e.GetTopic(), sub.GetGroup())...)
			}
		}
		return needs
	}),
}

// Routes are the needs of all HTTP routes, by method and pattern. A route without an entry needs
// administrator rights for the whole broker. A route with nil needs is open to everyone.
var Routes = map[string]func(r *http.Request) []access.Need{
	"POST /v1/topics/{topic}/messages":               toSend,
	"POST /v1/topics/{topic}/recall":                 toSend,
	"POST /v1/groups/{group}/topics/{topic}/receive": toReceive,

	// These name a group and a handle; permitHandle asks for the handle's topic.
	"POST /v1/groups/{group}/acknowledge":               asGroup,
	"POST /v1/groups/{group}/change-invisible-duration": asGroup,
	"POST /v1/groups/{group}/retry":                     asGroup,
	"POST /v1/groups/{group}/dead-letter":               asGroup,
	"POST /v1/groups/{group}/negative-acknowledge":      asGroup,
	"POST /v1/groups/{group}/snooze":                    asGroup,
	"POST /v1/groups/{group}/reconsume-later":           asGroup, // permitReconsume asks for the topics that it sends to

	"GET /v1/topics":                                 toList,
	"GET /v1/topics/{topic}":                         onTopic(access.Observe),
	"GET /v1/topics/{topic}/messages":                toLook, // package routes asks for the permission to receive for contents
	"GET /v1/topics/{topic}/messages/{id}":           toLook, // package routes leaves out groups that the key may not observe
	"PUT /v1/topics/{topic}":                         onTopic(access.Admin),
	"DELETE /v1/topics/{topic}":                      onTopic(access.Admin),
	"POST /v1/topics/{topic}/purge":                  onTopic(access.Admin),
	"GET /v1/topics/{topic}/address-settings":        onTopic(access.Observe),
	"GET /v1/address-settings":                       onServer(access.Observe),
	"GET /v1/address-settings/{match}":               onServer(access.Observe),
	"PUT /v1/address-settings/{match}":               onServer(access.Admin),
	"DELETE /v1/address-settings/{match}":            onServer(access.Admin),
	"GET /v1/groups":                                 toList,
	"GET /v1/groups/{group}":                         onGroup(access.Observe),
	"PUT /v1/groups/{group}":                         onGroup(access.Admin),
	"PATCH /v1/groups/{group}":                       onGroup(access.Admin),
	"DELETE /v1/groups/{group}":                      onGroup(access.Admin),
	"POST /v1/groups/{group}/rewind":                 onGroup(access.Admin),
	"GET /v1/groups/{group}/parked":                  onGroup(access.Observe),
	"POST /v1/groups/{group}/parked/redrive":         onGroup(access.Admin),
	"GET /v1/groups/{group}/dead-letters":            listDeadLetters,
	"GET /v1/topics/{topic}/queues":                  onTopic(access.Observe),
	"GET /v1/groups/{group}/topics/{topic}/queues":   toBrowse,
	"GET /v1/groups/{group}/topics/{topic}/leases":   toBrowse,
	"GET /v1/groups/{group}/topics/{topic}/schedule": toBrowse,
	"GET /v1/groups/{group}/failures":                onGroup(access.Observe),
	"GET /v1/groups/{group}/dead-letters/classes":    listDeadLetters,
	"POST /v1/groups/{group}/dead-letters/redrive":   moveDeadLetters,
	"DELETE /v1/groups/{group}/dead-letters":         moveDeadLetters,
	"GET /v1/throttle":                               onServer(access.Observe),
	"PUT /v1/throttle":                               onServer(access.Admin),
	"PATCH /v1/throttle":                             onServer(access.Admin),
	"POST /v1/snapshot":                              onServer(access.Admin),
	"POST /v1/session":                               anyone, // the handler rejects anonymous requests
	"GET /v1/session":                                anyone,
	"DELETE /v1/session":                             anyone,
	"GET /v1/live":                                   anyone, // only names that the key may observe
	"GET /v1/history":                                anyone, // likewise, and the sums of these
	"GET /v1/audit":                                  onServer(access.Admin),
	"GET /v1/clients":                                anyone, // only clients of groups and topics that the key may observe
	"GET /v1/overview":                               onServer(access.Observe),
	"GET /metrics":                                   onServer(access.Observe),
	"GET /healthz":                                   nil, // probes of process managers have no keys
	"GET /readyz":                                    nil,
	"GET /v1/openapi.yaml":                           nil, // its content is in the public repository
	"GET /console":                                   nil, // the files of the console have no data
	"GET /console/":                                  nil,
}

func toSend(r *http.Request) []access.Need { return need(access.ToSend(r.PathValue("topic"))) }

func toLook(r *http.Request) []access.Need { return need(access.ToLook(r.PathValue("topic"))) }

// toList is the need for a list of all names. A page has only those that the key may observe, which
// package routes selects.
func toList(r *http.Request) []access.Need {
	if r.URL.RawQuery == "" {
		return need(access.OnServer(access.Observe))
	}
	return need(access.Signed())
}

func anyone(*http.Request) []access.Need { return need(access.Signed()) }

func toReceive(r *http.Request) []access.Need {
	return need(access.ToReceive(r.PathValue("topic"), r.PathValue("group")))
}

func toBrowse(r *http.Request) []access.Need {
	return need(access.ToBrowse(r.PathValue("topic"), r.PathValue("group")))
}

func asGroup(r *http.Request) []access.Need { return need(access.AsGroup(r.PathValue("group"))) }

// listDeadLetters is the need to list dead letters without their bodies. Package routes asks for
// the permission to receive if the request has bodies.
func listDeadLetters(r *http.Request) []access.Need {
	group := r.PathValue("group")
	return need(access.ToBrowse(tidegate.DeadLetterTopic(group), group))
}

// moveDeadLetters is to take dead letters out of there. Abandoned transactions
// are of all topics and of no group, so that their topic has to be allowed as well.
func moveDeadLetters(r *http.Request) []access.Need {
	group := r.PathValue("group")
	if topic := tidegate.DeadLetterTopic(group); topic == broker.AbandonedTransactions {
		return need(access.OnBoth(access.Admin, topic, group))
	}
	return need(access.OnGroup(access.Admin, group))
}

// NeedsOfRoute returns the needs of a route by its method and pattern. open is set if it needs
// nothing.
func NeedsOfRoute(pattern string) (needs func(*http.Request) []access.Need, open bool) {
	needs, known := Routes[pattern]
	if !known {
		return onServer(access.Admin), false
	}
	return needs, needs == nil
}

// NeedsOfNoRoute returns the needs of a request without a route: if it has credentials, they must
// be correct.
func NeedsOfNoRoute(*http.Request) []access.Need { return need(access.Signed()) }

// NeedsOfRPC returns the needs of an RPC.
func NeedsOfRPC(op string, req any) []access.Need {
	if f := RPCs[op]; f != nil {
		return f(req)
	}
	return need(access.OnServer(access.Admin))
}

func rpcRow[Q any](f func(Q) []access.Need) func(any) []access.Need {
	return func(req any) []access.Need {
		q, ok := req.(Q)
		if !ok {
			return need(access.OnServer(access.Admin))
		}
		return f(q)
	}
}

func need(n access.Need) []access.Need { return []access.Need{n} }

func consume(topic, group *rmqpb.Resource) []access.Need {
	return need(access.ToReceive(topic.GetName(), group.GetName()))
}

func onServer(a access.Action) func(*http.Request) []access.Need {
	return func(*http.Request) []access.Need { return need(access.OnServer(a)) }
}

func onTopic(a access.Action) func(*http.Request) []access.Need {
	return func(r *http.Request) []access.Need { return need(access.OnTopic(a, r.PathValue("topic"))) }
}

func onGroup(a access.Action) func(*http.Request) []access.Need {
	return func(r *http.Request) []access.Need { return need(access.OnGroup(a, r.PathValue("group"))) }
}

// beforeBody are needs of RPCs that are known before the request is read: a key that may not send
// to any topic is rejected before its bodies come. RPCs decide in any case.
var beforeBody = map[string]access.Need{"SendMessage": access.ToSendAnywhere()}

// A engine knows the topics of a delivery and of its group.
type engine interface {
	Group(name string) (status.Group, error)
	TopicOf(handle string) (topic, original string, err error)
}

// NeedsOfReconsume returns the needs of a retry through the retry topic, or nil for a delivery that
// the engine rejects.
func NeedsOfReconsume(e engine, d *tidegate.Delivery) []access.Need {
	g, bad := e.Group(d.ConsumerGroup)
	_, original, unknown := e.TopicOf(d.Handle)
	if bad != nil || unknown != nil {
		return nil
	}
	retry, dead := g.RetryTopic.Topics(original, d.ConsumerGroup)
	return []access.Need{access.ToSend(retry), access.ToSend(dead)}
}
