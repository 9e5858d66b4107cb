package runner

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The requests of RocketMQ's remoting protocol that the runner makes.
const (
	updateTopic        = 17
	updateBrokerConfig = 25
	clusterInfo        = 106
	updateGroup        = 200
)

// A request of RocketMQ's remoting protocol, without the frame's sizes.
type request struct {
	code   int
	fields map[string]string
	body   []byte
}

// encode returns the frame of a request: the size of the rest and the size of the header in 4 bytes
// each, a header in JSON, the body.
func (r request) encode() ([]byte, error) {
	header, err := json.Marshal(map[string]any{
		"code": r.code, "language": "GO", "version": 453, "opaque": 1, "flag": 0, "serializeTypeCurrentRPC": "JSON", "extFields": r.fields,
	})
	if err != nil {
		return nil, err
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(r.body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)))
	return append(append(b, header...), r.body...), nil
}

// maxResponse bounds the size of a response.
const maxResponse = 16 << 20

// readResponse reads the frame of a response and returns its body.
func readResponse(r io.Reader) ([]byte, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(r, sizes[:]); err != nil {
		return nil, err
	}
	// The highest byte of the header's size is the encoding: 0 is JSON.
	all, header := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])
	if all < 4 || all > maxResponse || header > all-4 {
		return nil, fmt.Errorf("the response has the sizes %d and %d: it is not RocketMQ's remoting protocol in JSON", all, header)
	}
	rest := make([]byte, all-4)
	if _, err := io.ReadFull(r, rest); err != nil {
		return nil, err
	}
	var h struct {
		Code   int
		Remark string
	}
	if err := json.Unmarshal(rest[:header], &h); err != nil {
		return nil, fmt.Errorf("the header of the response: %w", err)
	}
	if h.Code != 0 {
		return nil, fmt.Errorf("it responded with code %d: %s", h.Code, h.Remark)
	}
	return rest[header:], nil
}

// ask sends a request to a server on this machine.
func ask(ctx context.Context, port int, r request) ([]byte, error) {
	b, err := r.encode()
	if err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", local(port))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write(b); err != nil {
		return nil, err
	}
	body, err := readResponse(c)
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return body, nil
}

// isRegistered reports whether a response to clusterInfo lists the broker on a port of this
// machine. The response is not strict JSON: keys of its maps are numbers.
func isRegistered(info []byte, port int) bool {
	return strings.Contains(string(info), `"`+local(port)+`"`)
}

// registered reports whether the name server lists a broker. A broker registers 10 s after its
// start; a change of its permission, to the value that the permission has, makes it register now.
func registered(ctx context.Context, nameServer, broker int, permission string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := ask(ctx, nameServer, request{code: clusterInfo})
	if err != nil {
		return false
	}
	if isRegistered(info, broker) {
		return true
	}
	_, _ = ask(ctx, broker, configRequest(map[string]string{"brokerPermission": permission})) // the next check shows the effect
	return false
}

// configRequest returns the request that changes settings of a broker.
func configRequest(settings map[string]string) request {
	return request{code: updateBrokerConfig, body: []byte(properties(settings))}
}

var (
	topicName  = regexp.MustCompile(`^[%|a-zA-Z0-9_-]{1,127}$`)
	topicTypes = []string{"NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE"}
)

// defaultQueues is the number of queues of a topic on each broker.
const defaultQueues = 8

// topicRequest returns the request that creates or changes a topic. Zero queues mean defaultQueues.
func topicRequest(name, kind string, queues int) (request, error) {
	kind = strings.ToUpper(kind)
	if queues == 0 {
		queues = defaultQueues
	}
	switch {
	case !topicName.MatchString(name):
		return request{}, fmt.Errorf("topic %q: a name has 1 to 127 of the characters %%|a-zA-Z0-9_-", name)
	case !slices.Contains(topicTypes, kind):
		return request{}, fmt.Errorf("topic %s: type %q is not one of %s", name, kind, strings.Join(topicTypes, ", "))
	case queues < 1 || queues > 1024:
		return request{}, fmt.Errorf("topic %s: the number of queues is %d, not 1 to 1024", name, queues)
	}
	n := strconv.Itoa(queues)
	return request{code: updateTopic, fields: map[string]string{
		"topic": name, "defaultTopic": "TBW102", "readQueueNums": n, "writeQueueNums": n,
		"perm":            "6", // read and write
		"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+message.type=" + kind,
	}}, nil
}

// A Group describes a consumer group. The zero value is a group without an order and without
// retries.
type Group struct {
	FIFO bool

	// MaxRetries is the number of deliveries after the first one. RocketMQ's default is 16.
	MaxRetries int

	// Retry are the delays that the server gives to push consumers. Nil means RocketMQ's table.
	Retry []time.Duration

	// LiteTopic is the topic of type LITE from whose lite topics the group receives. Empty means
	// that it receives from topics of other types. RocketMQ 5.5.0; a broker needs enableLmq and
	// enableMultiDispatch.
	LiteTopic string

	// Attributes are further attributes of RocketMQ, for example "lite.sub.model": "Exclusive".
	Attributes map[string]string
}

var groupName = regexp.MustCompile(`^[%|a-zA-Z0-9_-]{1,120}$`)

// groupRequest returns the request that creates or changes a consumer group.
func groupRequest(name string, g Group) (request, error) {
	if !groupName.MatchString(name) {
		return request{}, fmt.Errorf("group %q: a name has 1 to 120 of the characters %%|a-zA-Z0-9_-", name)
	}
	if g.MaxRetries < 0 {
		return request{}, fmt.Errorf("group %s: the number of retries is %d, less than 0", name, g.MaxRetries)
	}
	body := map[string]any{"groupName": name, "consumeMessageOrderly": g.FIFO, "retryMaxTimes": g.MaxRetries}
	if g.Retry != nil {
		next := []int64{}
		for _, d := range g.Retry {
			next = append(next, d.Milliseconds())
		}
		body["groupRetryPolicy"] = map[string]any{"type": "CUSTOMIZED", "customizedRetryPolicy": map[string]any{"next": next}}
	}
	attributes := map[string]string{}
	for name, value := range g.Attributes {
		attributes["+"+name] = value
	}
	if g.LiteTopic != "" {
		attributes["+lite.bind.topic"] = g.LiteTopic
	}
	if len(attributes) > 0 {
		body["attributes"] = attributes
	}
	b, err := json.Marshal(body)
	return request{code: updateGroup, body: b}, err
}
