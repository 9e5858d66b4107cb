package browsertest

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// A change in a session has the header of the session, which the broker demands, and is audited
// with its key. The sign-out ends the session at the broker.
func TestChangesInASession(t *testing.T) {
	s, _ := guarded(t)
	before, err := s.Topic("normal")
	assert.Must(t, err)
	b := open(t, s.url)
	b.load("")
	b.signIn("root")
	b.visit("#/topics/normal")
	b.click("send", "normal")
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	b.eval(`document.querySelector('dialog [name=body]').value = 'x'; null`, nil)
	b.click("confirm", "")
	b.wait(`!document.querySelector('dialog')`)
	b.visit("#/groups/other")
	b.click("change-group", "other")
	b.wait(`document.querySelector('dialog[open] [name=max_attempts]')`)
	b.eval(`document.querySelector('dialog [name=max_attempts]').value = '5'; null`, nil)
	b.click("confirm", "")
	b.wait(`!document.querySelector('dialog')`)
	after, err := s.Topic("normal")
	if err != nil || after.StoredMessages != before.StoredMessages+1 {
		t.Errorf("the topic has %d messages, want %d; %v", after.StoredMessages, before.StoredMessages+1, err)
	}
	b.click("sign-out", "")
	b.wait(`document.querySelector('main[data-page=sign-in]')`)
	for _, operation := range []string{"patchGroup", "logout"} {
		if _, text := s.ask(t, "root", "GET audit?operation="+operation); strings.Count(text, `"key": "root"`) != 1 || !strings.Contains(text, `"result": "ok"`) {
			t.Errorf("the audit of %s is %s", operation, text)
		}
	}
	b.clean()
}
