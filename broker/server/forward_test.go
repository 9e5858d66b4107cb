package server_test

import (
	"maps"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A program may forward a message with all properties of its delivery, also those that the server
// added. The broker accepts the message, and replaces these by the properties of the new message.
func TestDeliveredMessageIsSentOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		grouped := func(group string, properties map[string]string) func(*rmqpb.Message) {
			return func(m *rmqpb.Message) {
				m.UserProperties, m.SystemProperties.MessageGroup = properties, &group
			}
		}
		e.send(msg("fifo", "1", grouped("first", map[string]string{"k": "v"})))
		first := e.one(e.ctx(), receiveRequest("fifo"))
		if want := map[string]string{"k": "v", "__SHARDINGKEY": "first"}; !maps.Equal(first.GetUserProperties(), want) {
			t.Errorf("delivered with %v, want %v", first.GetUserProperties(), want)
		}
		all := first.GetUserProperties()
		all["__transactionId__"] = "of another server"
		e.send(msg("normal", "2", func(m *rmqpb.Message) { m.UserProperties = all }))
		if got, want := e.one(e.ctx(), receiveRequest("normal")).GetUserProperties(), map[string]string{"k": "v"}; !maps.Equal(got, want) {
			t.Errorf("sent on: %v, want %v", got, want)
		}
		e.ack(first)
		e.send(msg("fifo", "3", grouped("second", all)))
		if got, want := e.one(e.ctx(), receiveRequest("fifo")).GetUserProperties(), map[string]string{"k": "v", "__SHARDINGKEY": "second"}; !maps.Equal(got, want) {
			t.Errorf("sent on in another message group: %v, want %v", got, want)
		}
	})
}
