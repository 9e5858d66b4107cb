package browsertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// pages are pages of the console, with the names that populate creates.
var pages = []struct{ name, fragment string }{
	{"overview", "#/overview"},
	{"topics", "#/topics"},
	{"topics-one", "#/topics/normal"},
	{"groups", "#/groups"},
	{"groups-one", "#/groups/g"},
	{"dead-letters", "#/dead-letters"},
	{"dead-letters-one", "#/dead-letters/g"},
	{"messages", "#/messages?topic=normal"},
	{"messages-part", "#/messages/normal/0/0"},
	{"trace", "#/trace?topic=normal"},
	{"parked", "#/parked"},
	{"parked-one", "#/parked/g"},
	{"limits", "#/limits"},
	{"address", "#/address?topic=normal"},
	{"clients", "#/clients"},
	{"audit", "#/audit"},
	{"help", "#/help"},
}

// The bounds of the specification.
const (
	maxRows     = 200    // of a page, ever
	maxFirst    = 95_000 // bytes of the first load: 45 000 for the console, and its first page of data
	maxTransfer = 95_000 // bytes of one page: 50 000 for the overview, 40 000 for a list; with headers, and modules that are loaded late
)

// Each page works on an empty broker and with 1, 100 and 10 000 topics. It keeps the content
// security policy and the bounds of the specification, has no error, and makes no request to
// another origin. Without access keys there is no login, and the page notes that each client may do
// everything.
func TestPages(t *testing.T) {
	for _, n := range []int{0, 1, 100, 10_000} {
		t.Run(fmt.Sprintf("%d topics", n), func(t *testing.T) {
			s := start(t, siteOptions{})
			s.populate(n)
			b := open(t, s.url)
			b.load("")
			// First: the console itself.
			if sent := b.transferred(); sent > maxFirst {
				t.Errorf("the first load transferred %d bytes, the limit is %d", sent, maxFirst)
			}
			for _, p := range pages {
				b.visit(p.fragment)
				b.is(p.name)
				b.clean()
				rows := value[int](b, `document.querySelectorAll('main tr, main li').length`)
				assert.That(t, rows <= maxRows, "%s has %d rows, the limit is %d", p.fragment, rows, maxRows)
				if sent := b.transferred(); sent > maxTransfer {
					t.Errorf("%s transferred %d bytes, the limit is %d", p.fragment, sent, maxTransfer)
				}
				says := value[string](b, `document.querySelector('[data-session=open]')?.title || ''`)
				assert.That(t, strings.Contains(says, "everyone on this machine may do everything"), "%s shows %q", p.fragment, says)
				b.shoot(fmt.Sprintf("%s-%d", p.name, n))
			}
			if requests := fmt.Sprint(b.sent()); strings.Contains(requests, "POST") {
				t.Errorf("the page logs in: %s", requests)
			}
		})
	}
}
