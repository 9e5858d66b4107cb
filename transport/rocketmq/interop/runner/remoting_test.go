package runner

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// frame returns a frame of RocketMQ's remoting protocol: the size of the rest, the size of the
// header, the header, the body.
func frame(header, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)))
	return append(append(b, header...), body...)
}

func TestRequestFrame(t *testing.T) {
	b := assert.Value(request{code: 17, fields: map[string]string{"topic": "t"}, body: []byte("body")}.encode())(t)
	size := binary.BigEndian.Uint32(b[4:8])
	var header struct {
		Code, Flag int
		ExtFields  map[string]string
	}
	assert.Must(t, json.Unmarshal(b[8:8+size], &header))
	if int(binary.BigEndian.Uint32(b)) != len(b)-4 || header.Code != 17 || header.Flag != 0 || header.ExtFields["topic"] != "t" || string(b[8+size:]) != "body" {
		t.Errorf("the frame is %q", b)
	}
}

func TestResponseFrame(t *testing.T) {
	for name, c := range map[string]struct {
		frame []byte
		body  string
		err   string
	}{
		"success":           {frame(`{"code":0,"flag":1,"opaque":1}`, "body"), "body", ""},
		"without a body":    {frame(`{"code":0}`, ""), "", ""},
		"an error":          {frame(`{"code":1,"remark":"the topic is wrong"}`, ""), "", "code 1: the topic is wrong"},
		"of another server": {[]byte("HTTP/1.1 400 Bad Request"), "", "not RocketMQ's remoting protocol"},
		"a large header":    {[]byte{0, 0, 0, 4, 0, 0, 0, 1}, "", "not RocketMQ's remoting protocol"},
		"in binary":         {[]byte{0, 0, 0, 8, 1, 0, 0, 4, 1, 2, 3, 4}, "", "not RocketMQ's remoting protocol"},
		"cut":               {frame(`{"code":0}`, "body")[:20], "", "EOF"},
		"no JSON":           {frame(`{`, ""), "", "header of the response"},
	} {
		body, err := readResponse(bytes.NewReader(c.frame))
		if c.err == "" && (err != nil || string(body) != c.body) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, %v, want %q, %q", name, body, err, c.body, c.err)
		}
	}
}

// The response of a RocketMQ 5.2.0 to a request for the addresses of the cluster.
func TestIsRegistered(t *testing.T) {
	info := []byte(`{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:20003"},"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}`)
	for port, want := range map[int]bool{20003: true, 2000: false, 20006: false} {
		assert.That(t, isRegistered(info, port) == want, "port %d is registered: %v", port, !want)
	}
}

func TestTopicRequest(t *testing.T) {
	r, err := topicRequest("orders", "fifo", 0)
	if err != nil || r.code != 17 || r.fields["topic"] != "orders" || r.fields["attributes"] != "+message.type=FIFO" || r.fields["readQueueNums"] != "8" || r.fields["writeQueueNums"] != "8" || r.fields["perm"] != "6" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, c := range []struct {
		name, kind string
		queues     int
	}{{"", "NORMAL", 1}, {"a b", "NORMAL", 1}, {strings.Repeat("a", 128), "NORMAL", 1}, {"a", "QUEUE", 1}, {"a", "NORMAL", -1}, {"a", "NORMAL", 1025}} {
		assert.That(t, assert.Err(topicRequest(c.name, c.kind, c.queues)) != nil, "%+v is accepted", c)
	}
}

func TestGroupRequest(t *testing.T) {
	r, err := groupRequest("billing", Group{FIFO: true, MaxRetries: 2, Retry: []time.Duration{time.Second, 1500 * time.Millisecond}})
	want := `{"consumeMessageOrderly":true,"groupName":"billing","groupRetryPolicy":{"customizedRetryPolicy":{"next":[1000,1500]},"type":"CUSTOMIZED"},"retryMaxTimes":2}`
	assert.That(t, err == nil && r.code == 200 && string(r.body) == want, "%d %s, %v, want %s", r.code, r.body, err, want)
	if r, err := groupRequest("billing", Group{}); err != nil || strings.Contains(string(r.body), "groupRetryPolicy") {
		t.Errorf("%s, %v, want no policy", r.body, err)
	}
	for name, g := range map[string]Group{"a b": {}, "a": {MaxRetries: -1}} {
		assert.That(t, assert.Err(groupRequest(name, g)) != nil, "%q %+v is accepted", name, g)
	}
}
