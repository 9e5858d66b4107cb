package rocketmq

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tidegate/tidegate"
)

// The SDK derives two names from a consumer group: the client ID of each kind of consumer, by which
// servers keep settings, and the topic of its dead letters. Each derived name belongs to that group
// alone, with any legal characters in the name of the group.
func TestNamesOfGroupsAreDistinct(t *testing.T) {
	c := newClient(t, newNetwork(), nil)
	groups, words := []string{}, []string{"a", "b", "-", "_", "|", "%", "simple", "DLQ", "RETRY"}
	for _, x := range words {
		groups = append(groups, x)
		for _, y := range words {
			groups = append(groups, x+y)
			for _, z := range words {
				groups = append(groups, x+y+z)
			}
		}
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	ids, letters := map[string]role{fmt.Sprint(c.identity(role{})): {}}, map[string]string{}
	for _, group := range groups {
		if err := tidegate.ValidateGroup(group); err != nil {
			t.Fatal(err)
		}
		for _, push := range []bool{false, true} {
			as := role{group, push}
			id := fmt.Sprint(c.identity(as))
			if other, ok := ids[id]; ok {
				t.Errorf("%+v and %+v have the identity %s", as, other, id)
			}
			ids[id] = as
		}
		topic := tidegate.DeadLetterTopic(group)
		if other, ok := letters[topic]; ok {
			t.Errorf("groups %s and %s have the dead letter topic %s", group, other, topic)
		}
		letters[topic] = group
	}
	for _, group := range []string{"a@simple", "a@b"} { // of which a client ID could be that of another group
		if tidegate.ValidateGroup(group) == nil {
			t.Errorf("group %s is legal", group)
		}
	}
}
