package browsertest

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/settings"
)

// Two tabs change the same settings. The second change is rejected with a message and overwrites
// nothing. The next dialog of the second tab has the settings of the first one.
func TestSecondChangeOverwritesNothing(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{})
	s.group("billing", settings.Group{})
	assert.Must(t, assert.Err(s.PutAddressSettings(t.Context(), "orders.#", settings.Address{})))
	a := open(t, s.url)
	a.load("")
	b := a.beside()
	b.load("")
	for _, c := range []struct{ fragment, action, field, stored string }{
		{"#/topics/orders", "change-topic", "max_backlog.messages", "topics/orders"},
		{"#/groups/billing", "change-group", "max_attempts", "groups/billing"},
		{"#/limits", "set-limits", "max_backlog.bytes", "throttle"},
		{"#/address", "change-address", "max-delivery-attempts", "address-settings/orders.%23"},
	} {
		input := `document.querySelector('dialog[open] [name="` + c.field + `"]')`
		fill := func(b *tab, value string) {
			b.wait(input)
			b.eval(input+`.value = `+value+`; null`, nil)
		}
		for _, b := range []*tab{a, b} {
			b.visit(c.fragment)
			b.click(c.action, "")
		}
		fill(a, "'5000001'")
		fill(b, "'6000001'")
		a.confirm()
		b.click("confirm", "")
		b.wait(`document.querySelector('dialog [role=alert]:not([hidden])')?.textContent.includes('changed meanwhile')`)
		if _, text := s.ask(t, "anyone", "GET "+c.stored); !strings.Contains(text, "5000001") || strings.Contains(text, "6000001") {
			t.Errorf("%s: the second change overwrote the first: %s", c.fragment, text)
		}
		b.click("cancel", "")
		b.wait(`!document.querySelector('dialog')`)
		b.click(c.action, "")
		b.wait(input + `?.value === '5000001'`)
		fill(b, "'7000001'")
		b.confirm()
		if _, text := s.ask(t, "anyone", "GET "+c.stored); !strings.Contains(text, "7000001") {
			t.Errorf("%s: the change on the new settings: %s", c.fragment, text)
		}
	}
	a.clean()
	if faults := b.recorded(); len(faults) > 0 {
		t.Error(faults)
	}
}
