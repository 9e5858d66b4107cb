package metrics

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
)

// filled returns a value of which every number is n, so that a sum that forgets a field shows.
func filled[T any](n int64) (v T) {
	var fill func(reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() { //nolint:exhaustive // texts and maps stay empty
		case reflect.Int64:
			v.SetInt(n)
		case reflect.Struct:
			for _, f := range v.Fields() {
				if f.CanSet() {
					fill(f)
				}
			}
		case reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem())
		}
	}
	fill(reflect.ValueOf(&v).Elem())
	return v
}

// The totals are the sums of every number; ages are the highest.
func TestTotalsSumEveryField(t *testing.T) {
	var st engine.Stats
	for i, n := range []int64{3, 4} {
		topic, sub := filled[engine.TopicCount](n), filled[engine.GroupCount](n)
		topic.Name, sub.Topic, sub.Group = fmt.Sprint("t", i), fmt.Sprint("t", i), "g"
		topic.Throttle = nil
		topic.Removed = map[engine.RemovalCause]int64{"time": n}
		st.Topics, st.Groups = append(st.Topics, topic), append(st.Groups, sub)
	}
	st.Topics[1].Throttle = &status.Throttle{}
	selection{totals: true}.apply(&st)
	topic, sub := filled[engine.TopicCount](7), filled[engine.GroupCount](7)
	topic.Name, sub.Topic, sub.Group = "*", "*", "*"
	topic.Throttle, topic.Removed = &status.Throttle{}, map[engine.RemovalCause]int64{"time": 7}
	sub.OldestMS, sub.UndeliveredMS = 4, 4
	topic.OldestMS, topic.Acked, topic.Groups = 0, 0, 0 // no metric shows these
	sub.Held, sub.Clients, sub.DeadLettersHour, sub.DeadLettersStored = nil, 0, 0, 0
	if len(st.Topics) != 1 || !reflect.DeepEqual(st.Topics[0], topic) {
		t.Errorf("the sum of the topics is\n%+v, want\n%+v", st.Topics[0], topic)
	}
	if len(st.Groups) != 1 || !reflect.DeepEqual(st.Groups[0], sub) {
		t.Errorf("the sum of the groups is\n%+v, want\n%+v", st.Groups[0], sub)
	}
}

func TestSelectionOfMetrics(t *testing.T) {
	h := Handler(fixed{serving: true}, slog.New(slog.DiscardHandler))
	for query, c := range map[string]struct{ has, hasNot []string }{
		"":                   {[]string{`topic_stored_messages{topic="t"} 101`, `topic_stored_messages{topic="free"} 0`}, []string{`"*"`}},
		"?totals=only":       {[]string{`topic_stored_messages{topic="*"} 101`, `group_ready_messages{group="*",topic="*"} 201`, "tidegate_sessions 901"}, []string{`topic="t"`, `group="g"`}},
		"?topic=free":        {[]string{`topic_stored_messages{topic="free"} 0`}, []string{`topic="t"`}},
		"?group=g":           {[]string{`group_ready_messages{group="g",topic="t"} 201`}, []string{"topic_stored_messages{"}},
		"?group=none":        {[]string{"tidegate_sessions 901"}, []string{`group="g"`}},
		"?topic=t&unknown=1": {[]string{`topic_stored_messages{topic="t"} 101`}, []string{`topic="free"`}},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics"+query, nil))
		for _, text := range c.has {
			if !strings.Contains(w.Body.String(), text) {
				t.Errorf("%q has no %s", query, text)
			}
		}
		for _, text := range c.hasNot {
			if strings.Contains(w.Body.String(), text) {
				t.Errorf("%q has %s", query, text)
			}
		}
	}
}
