package newer

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

func find(t *testing.T, m proto.Message, place string) Change {
	t.Helper()
	list := Changes(m)
	at := slices.IndexFunc(list, func(c Change) bool { return c.Place == place })
	assert.MustThat(t, at >= 0, "no place %s in %v", place, list)
	return list[at]
}

func TestPlaces(t *testing.T) {
	var places []string
	for _, c := range Changes(&rmqpb.QueryRouteResponse{}) {
		places = append(places, c.Place+" "+c.Enum)
	}
	assert.Slices(t, "places", places, []string{
		"* ", "status.* ", "status.code Code", "message_queues.* ", "message_queues.topic.* ", "message_queues.permission Permission",
		"message_queues.broker.* ", "message_queues.broker.endpoints.* ", "message_queues.broker.endpoints.scheme AddressScheme",
		"message_queues.broker.endpoints.addresses.* ", "message_queues.accept_message_types MessageType",
	})
}

func TestApply(t *testing.T) {
	m := &rmqpb.QueryRouteResponse{MessageQueues: []*rmqpb.MessageQueue{
		{AcceptMessageTypes: []rmqpb.MessageType{1, 2}}, {Permission: rmqpb.Permission_READ},
	}}
	assert.That(t, !find(t, m, "status.code").Apply(m, 7) && !find(t, m, "message_queues.broker.*").Apply(m, 7) && m.Status == nil,
		"a message that is not set was changed: %v", m)
	q := m.MessageQueues
	for _, place := range []string{"message_queues.permission", "message_queues.accept_message_types", "message_queues.*"} {
		assert.That(t, find(t, m, place).Apply(m, 77), "%s was not changed", place)
	}
	assert.Slices(t, "types", q[0].AcceptMessageTypes, []rmqpb.MessageType{77})
	assert.That(t, q[0].Permission == 77 && q[1].Permission == rmqpb.Permission_READ, "permissions: %v", m)
	assert.That(t, len(q[0].ProtoReflect().GetUnknown()) > 0 && len(m.ProtoReflect().GetUnknown()) == 0, "fields: %v", m)

	// The fields do not change the others.
	raw := assert.Value(proto.Marshal(m))(t)
	got := &rmqpb.QueryRouteResponse{}
	assert.Must(t, proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw, got))
	q[0].ProtoReflect().SetUnknown(nil)
	assert.That(t, proto.Equal(got, m), "%v, want %v", got, m)
}

// A complete message has all places. Messages that are set remain as they are.
func TestComplete(t *testing.T) {
	m := &rmqpb.SendMessageRequest{}
	Complete(m)
	for _, c := range Changes(m) {
		assert.That(t, c.Apply(m, 77), "no place %s in %v", c.Place, m)
	}
	cmd := &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_VerifyMessageCommand{VerifyMessageCommand: &rmqpb.VerifyMessageCommand{Nonce: "n"}}}
	Complete(cmd)
	assert.That(t, cmd.GetVerifyMessageCommand().GetNonce() == "n" && cmd.GetVerifyMessageCommand().GetMessage().GetSystemProperties().GetBodyDigest() != nil &&
		len(cmd.GetReady()) == 1 && cmd.GetSettings() == nil, "%v", cmd)
}

// A member of a oneof is not set in place of another one.
func TestApplyToOneof(t *testing.T) {
	cmd := &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ThreadStackTrace{ThreadStackTrace: &rmqpb.ThreadStackTrace{}}}
	assert.That(t, !find(t, cmd, "settings.client_type").Apply(cmd, 7) && find(t, cmd, "thread_stack_trace.*").Apply(cmd, 7), "%v", cmd)
	o := &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Offset{Offset: 3}}
	policy := find(t, o, "policy")
	assert.That(t, !policy.Apply(o, 7) && o.GetOffset() == 3, "%v", o)
	o.OffsetType = &rmqpb.OffsetOption_Policy_{}
	assert.That(t, policy.Apply(o, 7) && o.GetPolicy() == 7, "%v", o)
}
