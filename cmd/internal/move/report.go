package move

import (
	"fmt"

	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// never are the properties of messages that no move carries.
const never = "numbers of failed attempts (they begin with 1 again), times of storage and birth, queues and offsets"

// Plan returns the parts of a topic that a move would carry and those that stay, as a JSON document
// and as fields.
func (s State) Plan() (document map[string]any, fields []output.Field) {
	document = map[string]any{
		"ready": s.Sees.Ready, "inflight": s.Sees.Inflight, "waiting_retry": s.Sees.WaitingRetry, "delayed": s.Topic.DelayedMessages,
		"dead_letters": s.Dead, "stays": s.stays(), "not_carried": never,
	}
	fields = []output.Field{
		{Name: "ready", Value: s.Sees.Ready}, {Name: "in flight", Value: s.Sees.Inflight}, {Name: "waiting for a retry", Value: s.Sees.WaitingRetry},
		{Name: "delayed", Value: s.Topic.DelayedMessages}, {Name: "dead letters", Value: s.Dead},
	}
	for _, line := range s.stays() {
		fields = append(fields, output.Field{Name: "stays", Value: output.Textf("%s", line)})
	}
	return document, append(fields, output.Field{Name: "not carried", Value: output.Textf("%s", never)})
}

// stays describes the messages that a move does not carry, one line for each kind.
func (s State) stays() []string {
	var lines []string
	for _, x := range []struct {
		n    int64
		text string
	}{
		{s.Topic.HalfMessages, "of unresolved transactions: ready when their producer commits them"},
		{s.Sees.Parked, "parked: ready after " + shell.Mention(shell.Line("tidegate parked redrive", s.Group.Name))},
	} {
		if x.n > 0 {
			lines = append(lines, fmt.Sprintf("%s %s", output.Count(x.n, "message"), x.text))
		}
	}
	return lines
}

// Print returns the result of a run: as a JSON document and as fields. letters is the number of
// carried dead letters; now is the state of the source, or nil if it reports none.
func (r Report) Print(letters int, now *State) (document map[string]any, fields []output.Field) {
	document = map[string]any{
		"moved": r.Moved, "sent_by_an_earlier_run": r.Earlier, "failed_before": r.Attempts, "unacknowledged": r.Unacked,
		"dead_letters_moved": letters, "not_carried": never,
	}
	fields = []output.Field{{Name: "moved", Value: r.Moved}}
	add := func(name, key string, n int64) {
		if document[key] = n; n > 0 {
			fields = append(fields, output.Field{Name: name, Value: n})
		}
	}
	add("sent by an earlier run", "sent_by_an_earlier_run", r.Earlier)
	add("stored under a new ID (another message of the job has theirs)", "new_ids", r.Renamed)
	add("without their ID as a key, which did not fit", "without_id_as_key", r.Keyless)
	add("rejected by the target, they stay", "set_aside", r.Aside)
	add("behind those in their message group, they stay", "behind_set_aside", r.Behind)
	add("dead letters", "dead_letters_moved", int64(letters))
	add("had failed before (attempts begin with 1 again)", "failed_before", r.Attempts)
	if now == nil {
		return document, fields
	}
	add("left, ready", "left_ready", now.Sees.Ready)
	add("left, in flight", "left_inflight", now.Sees.Inflight)
	add("left, waiting for a retry", "left_waiting_retry", now.Sees.WaitingRetry)
	add("left, delayed", "left_delayed", now.Topic.DelayedMessages)
	add("dead letters that stay", "dead_letters", now.Dead)
	document["stays"] = now.stays()
	for _, line := range now.stays() {
		fields = append(fields, output.Field{Name: "stays", Value: output.Textf("%s", line)})
	}
	return document, fields
}
